"""Layers: which kernels run together, with their weights streamed in once; and their work for the cost model.

A layer begins at a module that multiplies by weights or looks them up: an element of a list of modules (such as a
transformer block) with all that is in it, or a single module. Everything else (norms, activations, the loss) joins
the layer before it, and embeddings that follow each other are one layer.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cerebras_contract.plans import Phase
from cerebras_wafer.compiler.ir.kernels import HEAVY_KINDS, Kernel, KernelGraph, KernelKind
from cerebras_wafer.hardware.costs import element_cycles
from cerebras_wafer.hardware.workload import LayerWork, PhaseWork, Work

_ANCHORS = HEAVY_KINDS | {KernelKind.EMBEDDING}


@dataclass(frozen=True)
class Layer:
    """Kernels of one layer in the order of the graph, and the names of the weights that they read."""

    name: str
    kernels: tuple[Kernel, ...]
    weights: tuple[str, ...]

    def of(self, *phases: Phase) -> list[Kernel]:
        return [kernel for kernel in self.kernels if kernel.phase in phases]


def layers_of(graph: KernelGraph) -> list[Layer]:
    """The layers in the order of forward; every kernel but the update is in one."""
    layer_of = _forward_layers(graph)
    last = list(layer_of.values())[-1]
    layer_of |= {kernel.name: last for kernel in graph.of(Phase.LOSS)}
    layer_of |= _backward_layers(graph, layer_of, last)
    kernels: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in graph.kernels:
        if kernel.name in layer_of:
            kernels[layer_of[kernel.name]].append(kernel)
    return [Layer(name, tuple(own), _weights(own)) for name, own in kernels.items()]


def layer_of_module(module: str) -> str:
    """An element of a list of modules is one layer with all that is in it; any other module is its own."""
    parts = module.split(".")
    for length, part in enumerate(parts, start=1):
        if part.isdigit():
            return ".".join(parts[:length])
    return module or "model"


def _forward_layers(graph: KernelGraph) -> dict[str, str]:
    """The layer of each kernel of forward, by the kernel's name."""
    forward = graph.of(Phase.FORWARD)
    anchors = [kernel for kernel in forward if kernel.kind in _ANCHORS and kernel.parameters]
    heavy = {layer_of_module(kernel.module) for kernel in anchors if kernel.kind in HEAVY_KINDS}
    beginning = {layer_of_module(kernel.module) for kernel in anchors}
    layer = next(iter(layer_of_module(kernel.module) for kernel in anchors), "model")
    found: dict[str, str] = {}
    embedded = {layer: layer}  # the layer that an embedding joined
    for kernel in forward:
        own = layer_of_module(kernel.module)
        if own in beginning and own not in embedded and own not in heavy and layer not in heavy:
            embedded[own] = layer
        layer = embedded.get(own, own) if own in beginning else layer
        found[kernel.name] = layer
    return found


def _backward_layers(graph: KernelGraph, layer_of: dict[str, str], last: str) -> dict[str, str]:
    """The layer of each kernel of backward: that of its module where it is one, else that of what it reads."""
    forward = graph.of(Phase.FORWARD)
    of_module: dict[str, set[str]] = defaultdict(set)
    for kernel in forward:
        of_module[kernel.module].add(layer_of[kernel.name])
    module_of = {kernel.name: kernel.module for kernel in forward}
    found: dict[str, str] = {}
    layer = last
    for kernel in graph.of(Phase.BACKWARD):
        read = [name for name in kernel.producers if name in module_of]
        same = [layer_of[name] for name in read if module_of[name] == kernel.module]
        own = of_module.get(kernel.module, set())
        if len(own) == 1:
            layer = next(iter(own))
        elif same or read:
            layer = (same or [layer_of[name] for name in read])[-1]
        found[kernel.name] = layer
    return found


def _weights(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for kernel in kernels for name in kernel.parameters))


def workload_of(graph: KernelGraph) -> tuple[LayerWork, ...]:
    """The work of every layer, in the order of forward; layers of equal work are not joined."""
    layers = layers_of(graph)
    home = {kernel.name: layer.name for layer in layers for kernel in layer.kernels}
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    elements = {weight.name: (math.prod(weight.shape), weight.trained) for weight in graph.weights}
    modules = modules_with_weights(graph)
    return tuple(_layer_work(layer, graph.batch_size, elements, modules, home, kernels) for layer in layers)


def _layer_work(
    layer: Layer,
    batch: int,
    elements: dict[str, tuple[int, bool]],
    modules: set[str],
    home: dict[str, str],
    kernels: dict[str, Kernel],
) -> LayerWork:
    forward = layer.of(Phase.FORWARD)
    outside = {name for kernel in forward for name in kernel.producers if home.get(name) not in (None, layer.name)}
    largest = max((kernel.output_bytes for kernel in forward if kernel.grows_with_batch), default=0)
    saved = sum(kernel.saved_bytes for kernel in forward if kernel.grows_with_batch)
    return LayerWork(
        name=layer.name,
        count=1,
        forward=_phase_work(forward, batch, modules),
        backward=_phase_work(layer.of(Phase.LOSS, Phase.BACKWARD), batch, modules),
        weights=sum(elements[name][0] for name in layer.weights),
        trained=sum(elements[name][0] for name in layer.weights if elements[name][1]),
        boundary_bytes=sum(kernels[name].output_bytes for name in outside if kernels[name].grows_with_batch) / batch,
        forward_bytes=2 * largest / batch,  # an operand and its result
        backward_bytes=(saved + 2 * largest) / batch,  # a value's gradient and an operand's, beside what is kept
        sliced=bool(layer.of(Phase.LOSS)),
    )


def _phase_work(kernels: list[Kernel], batch: int, modules: set[str]) -> PhaseWork:
    sample = sum((work_of(kernel, modules) for kernel in kernels if kernel.grows_with_batch), Work())
    once = sum((work_of(kernel, modules) for kernel in kernels if not kernel.grows_with_batch), Work())
    return PhaseWork(sample.scaled(1 / batch), once)


def work_of(kernel: Kernel, modules_with_weights: set[str]) -> Work:
    """The work of a kernel for the graph's whole batch.

    A matrix product is one of activations with activations where neither it nor, in backward, its module's forward
    reads a weight: a gradient of a weight is a product with that weight's activations, and counts as the weight's.
    """
    of_weights = kernel.kind != KernelKind.ATTENTION and (
        bool(kernel.parameters) or (kernel.phase == Phase.BACKWARD and kernel.module in modules_with_weights)
    )
    cost = element_cycles(kernel.element_work)
    if of_weights:
        return Work(kernel.multiply_adds, 0.0, cost)
    return Work(0.0, kernel.multiply_adds, cost)


def modules_with_weights(graph: KernelGraph) -> set[str]:
    """Modules that multiply by weights in forward."""
    return {kernel.module for kernel in graph.of(Phase.FORWARD) if kernel.kind in HEAVY_KINDS and kernel.parameters}
