"""Rounding to 16-bit formats, and where the compiler rounds: against exact arithmetic and modules written out."""

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from cerebras_contract.artifacts import ComputeFormat
from cerebras_wafer.simulator.rounding import round_to

ENCODINGS = 1 << 16
INFINITY_CODE = 0b111111 << 9
"""The first encoding of cbfloat16 that is no number; below it, numbers grow with their encodings."""


def decoded(code: int) -> Fraction:
    """The exact value of a non-negative finite cbfloat16, from its definition."""
    exponent, mantissa = code >> 9, code & 0x1FF
    if exponent == 0:
        return Fraction(mantissa) * Fraction(2) ** (1 - 31 - 9)
    return Fraction(512 + mantissa) * Fraction(2) ** (exponent - 31 - 9)


NUMBERS = [decoded(code) for code in range(INFINITY_CODE)]
NEXT_POWER = Fraction(2) ** 32
"""What would follow the largest number; what is nearer to it than to the largest number becomes infinite."""


def floats(values: list[Fraction]) -> Tensor:
    """The same values in float32; fails where one cannot be represented."""
    result = np.array([float(value) for value in values], dtype=np.float32)
    assert [Fraction(float(value)) for value in result] == values
    return torch.from_numpy(result)


def bits(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int32)


def rounded(values: Tensor) -> Tensor:
    return round_to(values, "cbfloat16")


def float_of_encoding(code: int) -> int:
    """The float32 bits that mean the same as an encoding that is infinite or NaN."""
    return (code >> 15) << 31 | 0xFF << 23 | (code & 0x1FF) << 14


def test_each_of_the_65536_encodings_is_left_as_it_is():
    finite = floats(NUMBERS)
    special = [float_of_encoding(code) for code in range(ENCODINGS) if code & 0x7FFF >= INFINITY_CODE]
    quiet = [code | (1 << 22 if code & 0x7FFFFF else 0) for code in special]  # arithmetic quiets a signalling NaN
    inputs = torch.from_numpy(np.array(special, dtype=np.uint32).view(np.float32))
    expected = torch.from_numpy(np.array(quiet, dtype=np.uint32).view(np.int32))
    assert 2 * len(NUMBERS) + len(special) == ENCODINGS
    assert torch.equal(bits(rounded(finite)), bits(finite))
    assert torch.equal(bits(rounded(-finite)), bits(-finite))  # the negative zero, too
    assert torch.equal(bits(rounded(inputs)), expected)


def test_the_middle_between_two_neighbours_goes_to_the_even_one_and_what_is_beside_it_to_the_nearer():
    upper = [*NUMBERS[1:], NEXT_POWER]
    middle = floats([(low + high) / 2 for low, high in zip(NUMBERS, upper, strict=True)])
    below, above = (torch.nextafter(middle, torch.tensor(end)) for end in (0.0, float("inf")))
    low, high = floats(NUMBERS), floats(upper)
    high[-1] = float("inf")
    even = torch.where(torch.arange(len(NUMBERS)) % 2 == 0, low, high)
    for sign in (1, -1):
        assert torch.equal(rounded(sign * middle), sign * even)
        assert torch.equal(rounded(sign * below), sign * low)
        assert torch.equal(rounded(sign * above), sign * high)


def test_random_floats_of_every_exponent_go_where_exact_arithmetic_says():
    generator = np.random.default_rng(0)
    patterns = generator.integers(0, 1 << 32, 20_000, dtype=np.uint32)
    near = patterns & 0x807FFFFF | generator.integers(127 - 42, 127 + 34, 20_000, dtype=np.uint32) << 23
    values = np.concatenate([patterns, near]).view(np.float32)
    values = values[~np.isnan(values)]
    expected = np.array([reference(float(value)) for value in values], dtype=np.float32)
    assert torch.equal(bits(rounded(torch.from_numpy(values))), bits(torch.from_numpy(expected)))


def reference(value: float) -> float:
    """Round one number with rational arithmetic."""
    if math.isinf(value):
        return value
    exponent = max(math.frexp(value)[1] - 1, -30)  # of the leading bit; the same for all subnormals
    spacing = Fraction(2) ** (exponent - 9)
    result = round(abs(Fraction(value)) / spacing) * spacing  # Python rounds ties to even
    return math.copysign(math.inf if result >= NEXT_POWER else float(result), value)


def test_the_layout_of_a_format_is_that_of_its_numbers():
    for name in ("float16", "bfloat16", "float32"):
        layout, info = ComputeFormat(name).layout, torch.finfo(getattr(torch, name))
        assert info.eps == 2.0**-layout.mantissa_bits
        assert info.smallest_normal == 2.0 ** (2 - 2 ** (layout.exponent_bits - 1))
        assert info.bits == 8 * layout.size_bytes
    layout = ComputeFormat.CBFLOAT16.layout
    assert NUMBERS[1 << layout.mantissa_bits] == Fraction(2) ** (2 - 2 ** (layout.exponent_bits - 1))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_other_formats_are_rounded_as_pytorch_converts(name):
    patterns = np.random.default_rng(1).integers(0, 1 << 32, 50_000, dtype=np.uint32)
    values = torch.from_numpy(patterns.view(np.float32))
    assert torch.equal(bits(round_to(values, name)), bits(values.to(getattr(torch, name)).float()))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "cbfloat16"])
def test_layout_in_memory_makes_no_difference_and_the_source_is_left_alone(name):
    table = torch.randn(300, 1001)  # more than one piece
    before = table.clone()
    whole = round_to(table, name)
    forms = [table.t(), table[:, 1:], table[::3, ::2], table[:4, :1].expand(4, 5), table[0, 0], table[:0], table[1:]]
    expected = [whole.t(), whole[:, 1:], whole[::3, ::2], whole[:4, :1].expand(4, 5), whole[0, 0], whole[:0], whole[1:]]
    for form, result in zip(forms, expected, strict=True):
        assert torch.equal(round_to(form, name), result)
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert round_to(images, name).stride() == images.stride()
    assert torch.equal(round_to(images, name), round_to(images.contiguous(), name))
    assert torch.equal(table, before)


def test_a_program_that_rounds_is_written_and_read_in_another_process(tmp_path):
    class Rounds(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return round_to(x, "cbfloat16") * 2

    values = torch.linspace(-3, 3, 50)
    torch.export.save(torch.export.export(Rounds(), (values,)), tmp_path / "rounds.pt2")
    torch.save(2 * rounded(values), tmp_path / "expected.pt")
    program = (
        "import sys, torch, cerebras_wafer.simulator.load\n"
        "module = torch.export.load(sys.argv[1] + '/rounds.pt2').module()\n"
        "print(torch.equal(module(torch.linspace(-3, 3, 50)), torch.load(sys.argv[1] + '/expected.pt')))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
