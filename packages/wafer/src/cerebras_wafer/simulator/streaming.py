"""Weight streaming: a layer's weights are brought in when it runs, the next one's beside it, and let go after.

Which weights a layer has, and which layer is next, is the plan's to say. Where in a program a layer begins and ends
is where its weights are used first and last; the program is rewritten to say so.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _BoxedCodeGen

from cerebras_contract.artifacts import ProgramName
from cerebras_contract.plans import Phase, Plan
from cerebras_wafer.compiler.frontends.flat import output_nodes
from cerebras_wafer.simulator.layers import LayerWeights, parameters_of, spans_of, weights_handed_on
from cerebras_wafer.simulator.load import Artifact
from cerebras_wafer.simulator.store import Store

STREAMER = "streamer"
TRACE_LENGTH = 10_000

AfterLayer = Callable[[list[str]], None]
"""Called in backward with the names of parameters whose gradients are complete, and which it reads no more."""


@dataclass(frozen=True)
class Moved:
    """What was done with the weights of a layer: `bring in`, `prefetch`, `let go` or `update`."""

    action: str
    layer: str
    phase: Phase


class Streamer:
    """Moves the weights and gradients of one store, layer by layer, in the order of a plan."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.store = store
        self.trace: deque[Moved] = deque(maxlen=TRACE_LENGTH)
        """What was moved, the last at the end."""
        stored = [role.removeprefix("parameter:") for role in store.tensors if role.startswith("parameter:")]
        self.layers = LayerWeights(plan, stored)
        names = [name for name, weights in self.layers.of.items() if weights]
        self._next = {
            Phase.FORWARD: dict(pairwise(names)),
            Phase.BACKWARD: dict(pairwise(names[::-1])),
        }
        self._accumulating: frozenset[str] = frozenset()
        self._after_layer: AfterLayer | None = None
        self._complete: dict[str, None] = {}
        self._is_finite: bool | None = None

    def begin_backward(self, accumulating: Iterable[str], after_layer: AfterLayer | None, *, look: bool) -> None:
        """What is to happen with gradients: added to those of `accumulating`, and looked at whether they are finite."""
        self._accumulating, self._after_layer = frozenset(accumulating), after_layer
        self._complete, self._is_finite = {}, True if look else None

    def end_backward(self) -> tuple[dict[str, Tensor], bool]:
        """The gradients by name, where they lie in the store, and whether all that was looked at is finite."""
        gradients = {name: self.store.tensors[f"gradient:{name}"] for name in self._complete}
        return gradients, self._is_finite is not False

    def bring_in(self, layer: str, phase: Phase) -> None:
        """The layer is about to run."""
        self._moved("bring in", layer, phase)
        following = self._next[phase].get(layer)
        if following is not None:
            self.store.will_need(self._parameters(following))
            self._moved("prefetch", following, phase)

    def let_go(self, layer: str, phase: Phase, gradients: Sequence[str]) -> None:
        """The layer has run; in backward, the gradients of these parameters are complete."""
        if gradients and self._after_layer is not None:
            self._after_layer(list(gradients))
            self._moved("update", layer, phase)
        self.store.let_go([*self._parameters(layer), *(f"gradient:{name}" for name in gradients)])
        self._moved("let go", layer, phase)

    def take_gradient(self, name: str, value: Tensor) -> None:
        """A gradient is there: it goes to the store."""
        place = self.store.tensors[f"gradient:{name}"]
        if name in self._accumulating:
            place.add_(value)
        else:
            place.copy_(value)
        self._complete[name] = None
        if self._is_finite is not None:
            self._is_finite = self._is_finite and bool(value.isfinite().all())

    def _parameters(self, layer: str) -> list[str]:
        return [f"parameter:{name}" for name in self.layers.of[layer]]

    def _moved(self, action: str, layer: str, phase: Phase) -> None:
        self.trace.append(Moved(action, layer, phase))


def streamed_programs(artifact: Artifact, streamer: Streamer) -> dict[ProgramName, GraphModule]:
    """The programs of an artifact, with the movements of weights and gradients in those that have any."""
    specs, programs = artifact.manifest.programs, dict(artifact.running)
    for name in (ProgramName.FORWARD, ProgramName.EVALUATE):
        programs[name] = streamed(artifact.running[name], parameters_of(specs[name].inputs), streamer)
    forward, backward = specs[ProgramName.FORWARD], specs[ProgramName.BACKWARD]
    handed_on = weights_handed_on(artifact.programs[ProgramName.FORWARD], forward.inputs, forward.outputs)
    programs[ProgramName.BACKWARD] = streamed_backward(
        artifact.running[ProgramName.BACKWARD],
        [handed_on.get(role) for role in backward.inputs],
        [role.removeprefix("gradient:") for role in backward.outputs],
        streamer,
    )
    return programs


def streamed(program: GraphModule, weights: Sequence[str | None], streamer: Streamer) -> GraphModule:
    """A program of forward that says where a layer's weights are brought in and let go.

    `weights` names, for each input, the parameter that it is, or a view of it; None for another input.
    """
    return _rewritten(program, weights, [], streamer, Phase.FORWARD)


def streamed_backward(
    program: GraphModule, weights: Sequence[str | None], gradients: Sequence[str], streamer: Streamer
) -> GraphModule:
    """As `streamed`, of backward: `gradients` names its outputs, which go to the store as they come."""
    return _rewritten(program, weights, gradients, streamer, Phase.BACKWARD)


def _rewritten(
    program: GraphModule,
    weights: Sequence[str | None],
    gradients: Sequence[str],
    streamer: Streamer,
    phase: Phase,
) -> GraphModule:
    """The program with calls to the streamer; where there are gradients, they are taken and nothing is returned."""
    nodes = list(program.graph.nodes)
    places = {node: place for place, node in enumerate(nodes)}
    returned = output_nodes(program)
    taken: dict[int, list[str]] = defaultdict(list)
    for name, node in zip(gradients, returned, strict=False):
        assert node is not None
        taken[places[node]].append(name)
    made = {name: place for place, names in taken.items() for name in names}
    spans = spans_of(program, weights, made, streamer.layers, phase)
    inputs = sum(node.op == "placeholder" for node in nodes)
    graph, copies = Graph(), dict[Node, Node]()
    for place, node in enumerate(nodes[:-1]):
        if place == inputs:
            moved_by = graph.get_attr(STREAMER)
            _take(graph, moved_by, copies, [(nodes[p], name) for p in range(inputs) for name in taken[p]])
        for layer in [layer for layer, span in spans.items() if max(span.first, inputs) == place]:
            graph.call_method("bring_in", (moved_by, layer, phase.value))
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if place >= inputs:
            _take(graph, moved_by, copies, [(node, name) for name in taken[place]])
        for layer, span in spans.items():
            if max(span.last, inputs) == place:
                graph.call_method("let_go", (moved_by, layer, phase.value, span.gradients))
    graph.output(() if gradients else tuple(copies[node] if node is not None else None for node in returned))
    graph.set_codegen(_BoxedCodeGen())
    constants = {str(node.target): attrgetter(str(node.target))(program) for node in nodes if node.op == "get_attr"}
    return GraphModule({**constants, STREAMER: streamer}, graph)


def _take(graph: Graph, moved_by: Node, copies: dict[Node, Node], gradients: Iterable[tuple[Node, str]]) -> None:
    for node, name in gradients:
        graph.call_method("take_gradient", (moved_by, name, copies[node]))
