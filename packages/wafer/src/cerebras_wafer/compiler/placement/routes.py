"""Routes: the way of activations from each stage to those that read them, in hops and colours.

A stage sends its result once, and the fabric copies it where the ways part: the routes of one stage have one colour,
which carries the activations, and the next colour the gradients on their way back. Two stages whose routes share a PE
need different colours there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from cerebras_wafer.compiler.placement.floorplan import Rectangle
from cerebras_wafer.compiler.placement.stages import Edge

COLOURS_OF_A_ROUTE = 2  # there, and back

PE = tuple[int, int]  # column, row


@dataclass(frozen=True)
class Route:
    """From a PE of the source's rectangle to one of the target's: first along a row or along a column, then the
    other way. It is as many lanes wide as `links`: the long side of the smaller rectangle. The way of its middle
    lane stands for all in hops and colours."""

    edge: Edge
    start: PE
    end: PE
    along_row_first: bool
    links: int
    colour: int = 0

    @property
    def hops(self) -> int:
        return abs(self.start[0] - self.end[0]) + abs(self.start[1] - self.end[1])

    @property
    def corner(self) -> PE:
        return (self.end[0], self.start[1]) if self.along_row_first else (self.start[0], self.end[1])

    def cycles(self, bytes_per_element: int, cycles_per_element: float) -> float:
        """Cycles in which a sample's activations pass, and their gradients the other way at the same time."""
        return self.edge.bytes_per_sample / bytes_per_element * cycles_per_element / self.links + self.hops


def routes(edges: Sequence[Edge], rectangles: Sequence[Rectangle]) -> list[Route]:
    """A route for each edge, with colours. Fewest colours are not sought: each source takes the lowest that is free,
    along rows first or along columns first, whichever leaves the lower colour."""
    by_source: dict[int, list[Edge]] = {}
    for edge in edges:
        by_source.setdefault(edge.source, []).append(edge)
    coloured: list[Route] = []
    taken = np.empty((0, 5), dtype=np.int64)  # box of a straight piece, and its colour
    for source in sorted(by_source):
        choices = []
        for along_row_first in (True, False):
            net = [_route(edge, rectangles, along_row_first) for edge in by_source[source]]
            pieces = _pieces(net)
            choices.append((_lowest_free(pieces, taken), not along_row_first, net, pieces))
        colour, _, net, pieces = min(choices, key=lambda choice: choice[:2])
        coloured += [replace(route, colour=colour) for route in net]
        taken = np.concatenate([taken, np.column_stack([pieces, np.full(len(pieces), colour)])])
    return sorted(coloured, key=lambda route: (route.edge.source, route.edge.target))


def colours_in_use(found: Iterable[Route]) -> int:
    """Colours that the routes take, those of the way back among them."""
    return max((route.colour for route in found), default=-COLOURS_OF_A_ROUTE) + COLOURS_OF_A_ROUTE


def _route(edge: Edge, rectangles: Sequence[Rectangle], along_row_first: bool) -> Route:
    source, target = rectangles[edge.source], rectangles[edge.target]
    start_column, end_column = _nearest(source.column, source.last_column, target.column, target.last_column)
    start_row, end_row = _nearest(source.row, source.last_row, target.row, target.last_row)
    links = min(max(source.width, source.height), max(target.width, target.height))
    return Route(edge, (start_column, start_row), (end_column, end_row), along_row_first, links)


def _nearest(first: int, last: int, other_first: int, other_last: int) -> tuple[int, int]:
    """The nearest coordinates of two ranges; the middle of what they share, where they share something."""
    low, high = max(first, other_first), min(last, other_last)
    if low <= high:
        return (low + high) // 2, (low + high) // 2
    return (last, other_first) if last < other_first else (first, other_last)


def _pieces(net: Sequence[Route]) -> NDArray[np.int64]:
    """The straight pieces of routes as boxes: first and last column, first and last row."""
    boxes = [_box(a, b) for route in net for a, b in ((route.start, route.corner), (route.corner, route.end))]
    return np.array(boxes, dtype=np.int64).reshape(-1, 4)


def _box(a: PE, b: PE) -> tuple[int, int, int, int]:
    return min(a[0], b[0]), max(a[0], b[0]), min(a[1], b[1]), max(a[1], b[1])


def _lowest_free(pieces: NDArray[np.int64], taken: NDArray[np.int64]) -> int:
    """The lowest colour that no route has which shares a PE with these pieces."""
    used: set[int] = set()
    for first_column, last_column, first_row, last_row in pieces:
        across = (taken[:, 0] <= last_column) & (taken[:, 1] >= first_column)
        meets = across & (taken[:, 2] <= last_row) & (taken[:, 3] >= first_row)
        used.update(int(colour) for colour in np.unique(taken[meets, 4]))
    return next(colour for colour in count(step=COLOURS_OF_A_ROUTE) if colour not in used)
