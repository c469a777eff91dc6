"""Where in a program a layer runs: from the first to the last operation that reads its weights.

Which weights a layer has, and which layer is next, is the plan's to say.
"""

import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from cerebras_contract.plans import Phase, Plan
from cerebras_wafer.compiler.frontends.flat import output_nodes


class LayerWeights:
    """The weights of each layer of a plan, those among `present`, in the order of forward."""

    def __init__(self, plan: Plan, present: Iterable[str]) -> None:
        names = frozenset(present)
        self.of: dict[str, list[str]] = {
            layer.name: [name for name in layer.weights if name in names] for layer in plan.layers
        }

    def layers_with(self, weight: str) -> list[str]:
        """The layers that read a weight, in the order of forward; one that no layer names is a layer of its own."""
        found = [name for name, weights in self.of.items() if weight in weights]
        if not found:
            self.of[weight] = [weight]
        return found or [weight]


@dataclass
class Span:
    """The places in a program, by the number of a node, between which a layer runs."""

    first: int
    last: int
    gradients: list[str] = field(default_factory=list)

    def cover(self, place: int) -> None:
        self.first, self.last = min(self.first, place), max(self.last, place)


def spans_of(
    program: GraphModule,
    weights: Sequence[str | None],
    gradients: Mapping[str, int],
    layers: LayerWeights,
    phase: Phase,
) -> dict[str, Span]:
    """Where each layer runs. Of a weight that several layers share, each has the uses that come in its turn.

    `weights` names, for each input, the parameter that it is, or a view of it; None for another input. `gradients` has
    the places where gradients are made: a layer ends where these are complete.
    """
    uses = _uses(program.graph, weights)
    spans: dict[str, Span] = {}
    for name in dict.fromkeys([*uses, *gradients]):
        with_weight = layers.layers_with(name)
        in_turn = with_weight if phase == Phase.FORWARD else with_weight[::-1]
        places = uses.get(name, [])
        for number, place in enumerate(places):
            turn = number * len(in_turn) // len(places)
            spans.setdefault(in_turn[turn], Span(place, place)).cover(place)
        if name in gradients:  # complete where it is there and no use of the weight is to come
            place = max([gradients[name], *places])
            span = spans.setdefault(with_weight[0], Span(place, place))
            span.cover(place)
            span.gradients.append(name)
    return spans


def parameters_of(roles: Sequence[str]) -> list[str | None]:
    """The parameter that each input is; None for another input."""
    return [role.removeprefix("parameter:") if role.startswith("parameter:") else None for role in roles]


def weights_handed_on(forward: GraphModule, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Of the outputs of forward, by role, those that are a parameter or a view of it, and its name."""
    views = _views(forward.graph, parameters_of(inputs))
    pairs = zip(outputs, output_nodes(forward), strict=True)
    return {role: views[node] for role, node in pairs if node is not None and node in views}


def _uses(graph: Graph, weights: Sequence[str | None]) -> dict[str, list[int]]:
    """For each weight the places where its values are read, in order."""
    views = _views(graph, weights)
    places = {node: place for place, node in enumerate(graph.nodes)}
    uses: dict[str, list[int]] = defaultdict(list)
    for node in graph.nodes:
        if node.op != "output" and node not in views:
            reading = next(iter(node.users)) if node.target is list else node  # the list that code is given
            for name in dict.fromkeys(views[one] for one in node.all_input_nodes if one in views):
                uses[name].append(places[reading])
    return uses


def _views(graph: Graph, weights: Sequence[str | None]) -> dict[Node, str]:
    """The inputs that are weights, and all views of them: nodes whose memory is the weight's."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    views = {node: name for node, name in zip(inputs, weights, strict=True) if name is not None}
    for node in graph.nodes:
        is_view = isinstance(node.target, OpOverload) and node.target.is_view
        if (is_view or node.target is operator.getitem) and node.args[0] in views:
            views[node] = views[node.args[0]]
    return views
