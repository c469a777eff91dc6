"""Floorplan: a rectangle for each stage, none on another, neighbours in the order of stages side by side.

The fabric is cut into strips over its width, one above the other. Stages fill the strips in their order, the first
strip from left to right, the next from right to left, and so on, so that the last of a strip lies over the first of
the next. Small stages stand on one another in a column. Where to cut is chosen by dynamic programming: the cuts after
which the rectangles are nearest to squares, since a square has the shortest ways in and out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_STACKED = 24  # stages in one column, at most
_SLACK_ROWS = 12  # rows that a strip may take beyond its area before the fabric counts as too narrow
_COSTS_OF_A_STRIP = (0.0, 0.02, 0.1, 0.5)  # in units of the fabric's area: more, and there are fewer strips


@dataclass(frozen=True)
class Rectangle:
    """PEs from `column`, `row` (the upper left one) on."""

    column: int
    row: int
    width: int
    height: int

    @property
    def area(self) -> int:
        return self.width * self.height

    @property
    def last_column(self) -> int:
        return self.column + self.width - 1

    @property
    def last_row(self) -> int:
        return self.row + self.height - 1


def floorplan(sizes: Sequence[int], columns: int, rows: int) -> list[Rectangle] | None:
    """Rectangles of at least these PEs, in the order of the sizes; None where they do not fit by these means.

    A model that needs a part of the fabric gets a part of its shape, in the upper left corner.
    """
    for share in _shares(sum(sizes) / (columns * rows)):
        width = max(1, min(columns, math.ceil(columns * share)))
        height = max(1, min(rows, math.ceil(rows * share)))
        for cost in _COSTS_OF_A_STRIP:
            found = _in_strips(sizes, _cuts(sizes, width, cost), width, height)
            if found is not None:
                return found
    return None


def _shares(full: float) -> list[float]:
    """Sides of the part of the fabric to try, as fractions of its sides."""
    tight = [min(1.0, math.sqrt(full * room)) for room in (1.04, 1.12, 1.3)]
    return sorted({*tight, 1.0})


def _cuts(sizes: Sequence[int], width: int, cost_of_a_strip: float) -> list[int]:
    """Position after the last stage of each strip, so that the rectangles are nearest to squares.

    A strip of stages i..j with the sum of areas A is A / width high, and a stage of area a in it off a square by
    log(a / height^2). The squares of that, weighted by area, add up from prefix sums.
    """
    areas = np.asarray(sizes, dtype=float)
    logarithms = np.log(areas)
    sums = [np.concatenate(([0.0], np.cumsum(areas * logarithms**power))) for power in (0, 1, 2)]
    count = len(sizes)
    best, before = np.zeros(count + 1), np.zeros(count + 1, dtype=int)
    total = sums[0][-1]
    for end in range(1, count + 1):
        area, first, second = (prefix[end] - prefix[:end] for prefix in sums)
        square = 2 * np.log(np.maximum(area / width, 1.0))
        penalties = best[:end] + second - 2 * square * first + square**2 * area + cost_of_a_strip * total
        before[end] = start = int(np.argmin(penalties))
        best[end] = penalties[start]
    cuts = [count]
    while before[cuts[-1]] > 0:
        cuts.append(int(before[cuts[-1]]))
    return cuts[::-1]


def _in_strips(sizes: Sequence[int], cuts: Sequence[int], columns: int, rows: int) -> list[Rectangle] | None:
    """The rectangles of strips that end at these cuts; None where they are together higher than the fabric."""
    found: list[Rectangle] = []
    row = start = 0
    for number, end in enumerate(cuts):
        inside = sizes[start:end]
        least = math.ceil(sum(inside) / columns)
        placed = None
        for height in range(least, min(least + _SLACK_ROWS, rows - row) + 1):
            placed = _strip(inside, columns, height)
            if placed is not None:
                break
        if placed is None:
            return None
        for rectangle in placed:
            column = columns - rectangle.column - rectangle.width if number % 2 else rectangle.column
            found.append(Rectangle(column, row + rectangle.row, rectangle.width, rectangle.height))
        row, start = row + height, end
    return found


def _strip(sizes: Sequence[int], columns: int, height: int) -> list[Rectangle] | None:
    """Rectangles in a strip of this height, in columns of one or several stages; None where it is too short.

    Dynamic programming over the columns: the fewest PE columns for the first n stages.
    """
    count = len(sizes)
    best: list[int] = [0] + [columns + 1] * count
    stacked = [0] * (count + 1)
    for end in range(1, count + 1):
        area = 0
        for start in range(end - 1, max(-1, end - 1 - _STACKED), -1):
            area += sizes[start]
            if start < end - 1 and -(-area // height) > columns - best[start]:
                break
            width = _column_width(sizes[start:end], area, height)
            if width and best[start] + width < best[end]:
                best[end], stacked[end] = best[start] + width, end - start
    if best[count] > columns:
        return None
    return _stack(sizes, best, stacked, height)


def _column_width(sizes: Sequence[int], area: int, height: int) -> int:
    """The least width in which these stages can stand on one another; 0 where three widths more than their area
    asks for do not do: the column is then better cut."""
    if len(sizes) > height:
        return 0
    least = -(-area // height)
    for width in range(least, least + 4):
        if sum(-(-size // width) for size in sizes) <= height:
            return width
    return 0


def _stack(sizes: Sequence[int], best: Sequence[int], stacked: Sequence[int], height: int) -> list[Rectangle]:
    """Rectangles of the columns chosen; rows left over go to the last of each column."""
    found: list[Rectangle] = []
    end = len(sizes)
    while end > 0:
        start = end - stacked[end]
        column, width = best[start], best[end] - best[start]
        heights = [-(-size // width) for size in sizes[start:end]]
        heights[-1] += height - sum(heights)
        tops = [sum(heights[:position]) for position in range(len(heights))]
        found += [Rectangle(column, top, width, tall) for top, tall in reversed(list(zip(tops, heights, strict=True)))]
        end = start
    return found[::-1]
