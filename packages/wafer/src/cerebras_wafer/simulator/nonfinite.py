"""Finds the operation from which a NaN or an infinity in a program's results came, by running it op by op.

The results are followed back: from an operation whose result is not finite to one of its inputs that was not, until
there is none. An infinity that a fill puts somewhere on purpose (the mask of an attention) is not followed, nor is one
that comes from nothing else; so what vanishes before the results does not count either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from cerebras_wafer.compiler.frontends.places import operation_name

FILLS = frozenset({"full", "full_like", "fill", "scalar_tensor", "masked_fill", "where", "constant_pad_nd"})


@dataclass(frozen=True)
class NonFinite:
    """Where it came from. `operation` is None where an input of the program, `role`, was not finite already.

    `kind` is `NaN` or `infinity`; `module` and `source` (`train.py:17`) are there where the program knows them.
    """

    kind: str
    operation: str | None = None
    role: str | None = None
    module: str | None = None
    source: str | None = None


@dataclass
class _Seen:
    """Of a node's result: whether it holds NaN, an infinity, and no other than one put there on purpose."""

    nan: bool
    infinite: bool
    on_purpose: bool

    @property
    def bad(self) -> bool:
        return self.nan or self.infinite


class _Look(fx.Interpreter):
    """Runs a program and remembers of each node what `_Seen` says; results are let go after their last use."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        self.seen: dict[Node, _Seen] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op == "output":
            return result
        nan, infinite = _look(result)
        if nan or infinite:
            causes = [self.seen[one] for one in n.all_input_nodes if one in self.seen]
            meant = _is_fill(n) or (bool(causes) and all(one.on_purpose for one in causes))
            self.seen[n] = _Seen(nan, infinite, on_purpose=meant and not nan)
        return result


def first_non_finite(program: GraphModule, arguments: Sequence[Tensor], roles: Sequence[str]) -> NonFinite | None:
    """Where the results of `program` stopped being finite; None where they are finite.

    `roles` name the arguments. Random operations draw from the global generator: put it where it was before.
    """
    look = _Look(program)
    with torch.no_grad():
        look.run(*arguments, enable_io_processing=False)
    output = next(iter(reversed(program.graph.nodes)))
    node = _worst(look, output.all_input_nodes)
    if node is None:
        return None
    while (cause := _worst(look, node.all_input_nodes)) is not None:
        node = cause
    return _described(node, look.seen[node], program, roles)


def _worst(look: _Look, nodes: Sequence[Node]) -> Node | None:
    """Of several nodes the one to follow: the first with NaN, else the first with an infinity nobody asked for."""
    seen = [(node, look.seen[node]) for node in nodes if node in look.seen]
    with_nan = next((node for node, one in seen if one.nan), None)
    return with_nan or next((node for node, one in seen if one.infinite and not one.on_purpose), None)


def _described(node: Node, seen: _Seen, program: GraphModule, roles: Sequence[str]) -> NonFinite:
    kind = "NaN" if seen.nan else "infinity"
    if node.op == "placeholder":
        inputs = [one for one in program.graph.nodes if one.op == "placeholder"]
        return NonFinite(kind, role=roles[inputs.index(node)])
    # An operation that the compiler put in, as a rounding, is where its operand is.
    places = [one.meta.get("custom") for one in (node, *node.all_input_nodes)]
    custom: dict[str, str] = next((place for place in places if place), {})
    return NonFinite(
        kind, operation_name(node.target), module=custom.get("module") or None, source=custom.get("source")
    )


def _look(result: Any) -> tuple[bool, bool]:
    tensors = [one for one in pytree.tree_leaves(result) if isinstance(one, Tensor) and one.is_floating_point()]
    nan = any(bool(tensor.isnan().any()) for tensor in tensors)
    return nan, any(bool(tensor.isinf().any()) for tensor in tensors)


def _is_fill(node: Node) -> bool:
    return node.op == "get_attr" or operation_name(node.target).rpartition(".")[2] in FILLS
