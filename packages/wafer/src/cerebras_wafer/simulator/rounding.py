"""Rounding of float32 values to a 16-bit format and back, as one operation of PyTorch's dispatcher.

`cerebras_wafer::round_to(value, format)` is what the precision pass inserts. Importing this module defines it; a
serialized program that holds it can be loaded only then. Results are float32 values that the format can represent:
rounded to the nearest, ties to even, with the format's subnormals, infinities, signed zeros and NaN.

One operation, and not two conversions, because a compiler of programs may take two conversions for nothing; and
because large tensors are rounded a piece at a time, while the piece is in the processor's cache.
"""

import torch
from torch import Tensor

from cerebras_contract.artifacts import ComputeFormat

PIECE_ELEMENTS = 1 << 17  # 512 KiB: source, result and scratch of one piece fit into a second-level cache
NATIVE = {ComputeFormat.FLOAT16.value: torch.float16, ComputeFormat.BFLOAT16.value: torch.bfloat16}

# cbfloat16: 1 sign, 6 exponent and 9 mantissa bits, an exponent bias of 31; the largest exponent is infinity and NaN.
CBFLOAT16_SMALLEST_NORMAL = 2.0**-30
CBFLOAT16_OVERFLOW = 2.0**32
_SIGN = -0x8000_0000
_EXPONENT = 0x7F80_0000  # of a float32
_ALIGN = 1.5 * 2.0**14
"""Added to a number of exponent 0, this leaves 9 bits behind the point in a float32: the others are rounded off."""
_TO_OVERFLOW = 2.0**96
"""Takes `CBFLOAT16_OVERFLOW` to where a float32 becomes infinite, and nothing below it."""


def _round_to(value: Tensor, format_name: str) -> Tensor:
    result = torch.empty_like(value)
    # Equal strides: both are dense, with their elements in the same order in memory.
    source = value if value.stride() == result.stride() else torch.empty_like(value).copy_(value)
    elements = value.numel()
    from_, to = source.as_strided((elements,), (1,)), result.as_strided((elements,), (1,))
    scratch = torch.empty(min(elements, PIECE_ELEMENTS), dtype=NATIVE.get(format_name, torch.float32))
    for start in range(0, elements, PIECE_ELEMENTS):
        end = min(start + PIECE_ELEMENTS, elements)
        _round_piece(from_[start:end], to[start:end], scratch[: end - start])
    return result


def _round_piece(source: Tensor, result: Tensor, scratch: Tensor) -> None:
    if scratch.dtype == torch.float32:
        _round_to_cbfloat16(source, result, scratch)
    else:
        result.copy_(scratch.copy_(source))


def _round_to_cbfloat16(source: Tensor, result: Tensor, scratch: Tensor) -> None:
    """A number is added to the source that is so much larger that float32 keeps 9 bits of the source behind its
    leading one, or, of a subnormal, those down to 2**-39; then it is taken away again. Float32 rounds ties to even.
    """
    source_bits, result_bits, scratch_bits = (tensor.view(torch.int32) for tensor in (source, result, scratch))
    torch.bitwise_and(source_bits, _EXPONENT, out=scratch_bits)
    torch.clamp(scratch, CBFLOAT16_SMALLEST_NORMAL, CBFLOAT16_OVERFLOW, out=scratch)
    torch.add(source, scratch, alpha=_ALIGN, out=result)
    result.sub_(scratch, alpha=_ALIGN)
    result.mul_(_TO_OVERFLOW).mul_(1 / _TO_OVERFLOW)
    torch.bitwise_and(source_bits, _SIGN, out=scratch_bits)
    torch.bitwise_or(result_bits, scratch_bits, out=result_bits)  # of a negative number that became zero


def _round_fake(value: Tensor, _format_name: str) -> Tensor:
    return torch.empty_like(value)


_LIBRARY = torch.library.Library("cerebras_wafer", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("round_to(Tensor value, str format) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("round_to", _round_to, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("cerebras_wafer::round_to", _round_fake, lib=_LIBRARY)
round_to = torch.ops.cerebras_wafer.round_to.default
