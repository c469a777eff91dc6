"""Check: what must hold of every placement. The planner runs it on each; a violation is a bug of ours."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebras_contract.systems import SystemSpec
from cerebras_wafer.compiler.placement.floorplan import Rectangle
from cerebras_wafer.compiler.placement.routes import COLOURS_OF_A_ROUTE, PE, Route
from cerebras_wafer.compiler.placement.stages import Edge, StageGraph
from cerebras_wafer.errors import CompilerBug


@dataclass(frozen=True)
class Placement:
    """Stages on a fabric. `sram_bytes_per_pe` is what each PE of a rectangle holds, code and buffers included."""

    graph: StageGraph
    rectangles: tuple[Rectangle, ...]
    sram_bytes_per_pe: tuple[float, ...]
    routes: tuple[Route, ...]


def check(placement: Placement, system: SystemSpec) -> None:
    """Raise `CompilerBug` with the first violations, if there are any."""
    found = violations(placement, system)
    if found:
        raise CompilerBug("the placement is wrong: " + "; ".join(found[:5]))


def violations(placement: Placement, system: SystemSpec) -> list[str]:
    """Everything that is wrong with a placement, in words."""
    count = len(placement.graph.stages)
    if len(placement.rectangles) != count or len(placement.sram_bytes_per_pe) != count:
        return [f"{count} stages, {len(placement.rectangles)} rectangles, {len(placement.sram_bytes_per_pe)} loads"]
    return [
        *_outside(placement, system),
        *_overlaps(placement),
        *_overfull(placement, system),
        *_faults_of_routes(placement, system),
        *_faults_of_colours(placement, system),
    ]


def _outside(placement: Placement, system: SystemSpec) -> Iterator[str]:
    for stage, box in zip(placement.graph.stages, placement.rectangles, strict=True):
        corners = ((box.column, box.row), (box.last_column, box.last_row))
        if box.width < 1 or box.height < 1 or not all(_is_inside(corner, system) for corner in corners):
            yield f"{stage.name} lies outside of the fabric: {box}"


def _overlaps(placement: Placement) -> Iterator[str]:
    boxes = np.array([(box.column, box.last_column, box.row, box.last_row) for box in placement.rectangles])
    for number in range(1, len(boxes)):
        for other in np.flatnonzero(_meeting(boxes[:number], boxes[number])):
            names = placement.graph.stages[int(other)].name, placement.graph.stages[number].name
            yield f"{names[0]} and {names[1]} overlap"


def _overfull(placement: Placement, system: SystemSpec) -> Iterator[str]:
    for stage, held in zip(placement.graph.stages, placement.sram_bytes_per_pe, strict=True):
        if held > system.sram_bytes_per_pe:
            yield f"{stage.name} holds {held:.0f} bytes on a PE of {system.sram_bytes_per_pe}"


def _faults_of_routes(placement: Placement, system: SystemSpec) -> Iterator[str]:
    routed = [route.edge for route in placement.routes]
    if sorted(map(_ends, routed)) != sorted(map(_ends, placement.graph.edges)):
        yield f"{len(placement.graph.edges)} edges, and {len(routed)} routes that are not theirs"
        return
    for route in placement.routes:
        name = _name(route, placement)
        places = (route.start, route.corner, route.end)
        if not all(_is_inside(place, system) for place in places):
            yield f"the route {name} leaves the fabric"
        source, target = (placement.rectangles[number] for number in _ends(route.edge))
        if not (_holds(source, route.start) and _holds(target, route.end)):
            yield f"the route {name} does not go from one rectangle to the other"
        if not 0 <= route.colour <= system.fabric_colours - COLOURS_OF_A_ROUTE or route.colour % COLOURS_OF_A_ROUTE:
            yield f"the route {name} has colour {route.colour} of {system.fabric_colours}"


def _faults_of_colours(placement: Placement, system: SystemSpec) -> Iterator[str]:
    """Two sources, one colour, one PE."""
    pieces = [
        (*_box(a, b), route.colour, route.edge.source, number)
        for number, route in enumerate(placement.routes)
        for a, b in ((route.start, route.corner), (route.corner, route.end))
    ]
    table = np.array(pieces, dtype=np.int64).reshape(-1, 7)
    for position in range(1, len(table)):
        piece, before = table[position], table[:position]
        clashes = _meeting(before, piece) & (before[:, 4] == piece[4]) & (before[:, 5] != piece[5])
        for other in np.flatnonzero(clashes):
            names = (_name(placement.routes[int(table[at][6])], placement) for at in (other, position))
            yield f"the routes {' and '.join(names)} share colour {piece[4]} of {system.fabric_colours} and a PE"


def _meeting(boxes: NDArray[np.int64], box: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which boxes (first and last column, first and last row) share a PE with one."""
    columns = (boxes[:, 0] <= box[1]) & (boxes[:, 1] >= box[0])
    meeting: NDArray[np.bool_] = columns & (boxes[:, 2] <= box[3]) & (boxes[:, 3] >= box[2])
    return meeting


def _is_inside(place: PE, system: SystemSpec) -> bool:
    return 0 <= place[0] < system.fabric_columns and 0 <= place[1] < system.fabric_rows


def _holds(box: Rectangle, place: PE) -> bool:
    return box.column <= place[0] <= box.last_column and box.row <= place[1] <= box.last_row


def _box(a: PE, b: PE) -> Sequence[int]:
    return min(a[0], b[0]), max(a[0], b[0]), min(a[1], b[1]), max(a[1], b[1])


def _ends(edge: Edge) -> tuple[int, int]:
    return edge.source, edge.target


def _name(route: Route, placement: Placement) -> str:
    source, target = (placement.graph.stages[number].name for number in _ends(route.edge))
    return f"from {source} to {target}"
