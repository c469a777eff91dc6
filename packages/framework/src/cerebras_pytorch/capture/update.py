"""The optimizer's update as a functional program, with learning rates as data."""

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.optim import Optimizer

from cerebras_contract.artifacts import OptimizerSpec
from cerebras_pytorch.capture import adafactor
from cerebras_pytorch.capture.fake import fake_like
from cerebras_pytorch.capture.functional import trace
from cerebras_pytorch.capture.optimizer import ParameterSlot, learning_rates
from cerebras_wafer.compiler.frontends.flat import node_value, output_nodes
from cerebras_wafer.compiler.frontends.training_step import Program

# Optimizers whose update of a parameter reads nothing of another, so that parameters can be traced one by one.
ONE_BY_ONE = frozenset(
    {
        torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop,
        torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.Adafactor,
    }
)  # fmt: skip


def capture_update(
    optimizer: Optimizer, slots: list[ParameterSlot], spec: OptimizerSpec, mode: FakeTensorMode
) -> Program:
    """The update as a program: parameters, gradients, state and rates in; parameters and state out.

    Of parameters that are alike one is traced, and its graph repeated for the others: a model of 96 equal layers
    has more than a thousand parameters, and about ten that differ.
    """
    if type(optimizer) not in ONE_BY_ONE:
        return _trace(optimizer, slots, spec, mode)
    graphs: dict[tuple[Any, ...], Program] = {}
    parts = []
    for slot in slots:
        alike = _shape(optimizer, slot, spec)
        if alike not in graphs:
            graphs[alike] = _trace(optimizer, [slot], spec, mode)
        parts.append((slot, graphs[alike]))
    return _joined(parts, _roles(optimizer, slots, spec), mode)


def _shape(optimizer: Optimizer, slot: ParameterSlot, spec: OptimizerSpec) -> tuple[Any, ...]:
    """What two parameters have in common whose updates are the same program."""
    state = [(name, optimizer.state[slot.parameter][name]) for name in spec.state[slot.name]]
    tensors = [("", slot.parameter), *state]
    return slot.group, *((name, tensor.shape, tensor.stride(), tensor.dtype) for name, tensor in tensors)


def _roles(optimizer: Optimizer, slots: list[ParameterSlot], spec: OptimizerSpec) -> list[str]:
    return [
        *(f"parameter:{slot.name}" for slot in slots),
        *(f"gradient:{slot.name}" for slot in slots),
        *(f"state:{slot.name}/{name}" for slot in slots for name in spec.state[slot.name]),
        *(f"rate:{number}" for number in range(len(optimizer.param_groups))),
    ]


def _trace(optimizer: Optimizer, slots: list[ParameterSlot], spec: OptimizerSpec, mode: FakeTensorMode) -> Program:
    parameters = [fake_like(mode, slot.parameter) for slot in slots]
    gradients = [fake_like(mode, slot.parameter) for slot in slots]
    state = [
        [fake_like(mode, optimizer.state[slot.parameter][name]) for name in spec.state[slot.name]] for slot in slots
    ]
    roles = _roles(optimizer, slots, spec)
    arguments = (parameters, gradients, state, learning_rates(optimizer))
    with torch.no_grad():
        return trace(_Update(optimizer, slots, spec), arguments, lambda number: roles[number]).program


class _Update(nn.Module):
    """One step of a copy of the optimizer over tensors that are handed in."""

    def __init__(self, optimizer: Optimizer, slots: list[ParameterSlot], spec: OptimizerSpec) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._slots = slots
        self._state_names = [spec.state[slot.name] for slot in slots]

    def forward(
        self, parameters: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]], rates: list[Tensor]
    ) -> None:
        stepped = copy.copy(self._optimizer)
        stepped.state = defaultdict(dict)
        stepped.param_groups = [self._traceable(group, rates[n]) for n, group in enumerate(stepped.param_groups)]
        for number, slot in enumerate(self._slots):
            parameter = parameters[number]
            parameter.grad = gradients[number]
            stepped.state[parameter] = dict(zip(self._state_names[number], state[number], strict=True))
            stepped.param_groups[slot.group]["params"].append(parameter)
        if type(stepped) is torch.optim.Adafactor:
            adafactor.step(stepped)
        else:
            type(stepped).step(stepped)  # the class's own: an instance may carry a scheduler's wrapper

    @staticmethod
    def _traceable(group: dict[str, Any], rate: Tensor) -> dict[str, Any]:
        """A group in the form of the implementation that can be traced: one parameter at a time, on tensors."""
        plain = {"foreach": False, "fused": False, "capturable": True}
        chosen = {name: value for name, value in plain.items() if name in group}
        return {**group, **chosen, "params": [], "lr": rate}


def _joined(parts: list[tuple[ParameterSlot, Program]], roles: list[str], mode: FakeTensorMode) -> Program:
    """One program that does what `parts` do, each for its own parameter."""
    graph, constants = Graph(), dict[str, Tensor]()
    inputs: dict[str, Node] = {role: graph.placeholder(f"input_{number}") for number, role in enumerate(roles)}
    outputs: dict[str, Node] = {}
    for slot, program in parts:
        outputs.update(_copy(program, slot, graph, inputs, constants))
    _describe_inputs(parts, inputs, mode)
    returned = {role: outputs[role] for role in roles if role in outputs}
    graph.output(tuple(returned.values()))
    return Program(GraphModule(constants, graph), tuple(roles), tuple(returned))


def _copy(
    program: Program, slot: ParameterSlot, graph: Graph, inputs: Mapping[str, Node], constants: dict[str, Tensor]
) -> Iterator[tuple[str, Node]]:
    """Copy a program of one parameter into `graph` for the parameter of `slot`; its outputs by role."""
    source = program.graph_module
    placeholders = [node for node in source.graph.nodes if node.op == "placeholder"]
    copied = {node: inputs[_role_for(slot, role)] for node, role in zip(placeholders, program.inputs, strict=True)}
    for node in source.graph.nodes:
        if node.op in ("call_function", "get_attr"):
            copied[node] = graph.node_copy(node, copied.__getitem__)
            if node.op == "get_attr":
                copied[node].target = name = f"constant_{len(constants)}"
                constants[name] = attrgetter(str(node.target))(source)
    for node, role in zip(output_nodes(source), program.outputs, strict=True):
        assert node is not None
        yield _role_for(slot, role), copied[node]


def _describe_inputs(
    parts: list[tuple[ParameterSlot, Program]], inputs: Mapping[str, Node], mode: FakeTensorMode
) -> None:
    """Give each input a fake tensor of its own: a graph whose inputs are one tensor would be traced as one input."""
    for slot, program in parts:
        placeholders = [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]
        for node, role in zip(placeholders, program.inputs, strict=True):
            inputs[_role_for(slot, role)].meta["val"] = fake_like(mode, node_value(node))


def _role_for(slot: ParameterSlot, role: str) -> str:
    """The role of a program of one parameter, as the role of the same tensor of `slot`."""
    kind, name = role.split(":", 1)
    if kind == "rate":
        return role
    return f"{kind}:{slot.name}/{name.rsplit('/', 1)[1]}" if kind == "state" else f"{kind}:{slot.name}"
