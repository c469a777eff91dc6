"""Rounding to 16-bit formats, and where the compiler rounds: against exact arithmetic and modules written out."""

import math
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.rounded import FORMATS, Attention, Convolutions, Rules, rounding
from tests.fixtures.training import BATCH, Network, compiled
from torch import Tensor, nn

from cerebras_contract.artifacts import ComputeFormat, PrecisionSpec, ProgramName
from cerebras_wafer.compiler.pipeline import Compiled
from cerebras_wafer.simulator.loss_scale import LossScaler, all_finite
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


def half(model: nn.Module, **precision: Any) -> Compiled:
    return compiled(model, precision=PrecisionSpec(**precision), make_optimizer=torch.optim.SGD)


def step_of(
    result: Compiled, model: nn.Module, scale: float = 1.0, weight: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and gradients of one step of the compiled programs, on a batch that is always the same."""
    forward, backward = result.programs[ProgramName.FORWARD], result.programs[ProgramName.BACKWARD]
    images, labels = batch()
    values = {f"parameter:{name}": parameter.detach() for name, parameter in model.named_parameters()}
    values |= {"input:0": images, "scale:0": torch.tensor(scale)}
    results = forward.graph_module(*(values[role] for role in forward.inputs))
    values |= dict(zip(forward.outputs, results, strict=True))
    output = values["output:0"].detach().requires_grad_()
    (weight * nn.functional.cross_entropy(output, labels)).backward()
    values["tangent:0"] = output.grad
    gradients = backward.graph_module(*(values[role] for role in backward.inputs))
    return output.detach(), dict(zip(backward.outputs, gradients, strict=True))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(BATCH, 1, 6, 6, generator=generator), torch.randint(0, 3, (BATCH,), generator=generator)


CASES = [
    *((Convolutions, name, level) for name in FORMATS for level in (1, 2)),
    *((Attention, name, level) for name, level in zip(FORMATS * 2, (0, 1, 2, 2, 0, 1), strict=True)),
]


@pytest.mark.parametrize(("make_model", "name", "level"), CASES)
def test_a_step_is_bitwise_that_of_modules_with_rounding_written_out(make_model, name, level):
    torch.manual_seed(3)
    model = make_model()
    result = half(model, compute_dtype=name, precision_opt_level=level, scales_loss=True)
    output, gradients = step_of(result, model, scale=1024.0)

    images, labels = batch()
    expected = model.written_out(Rules(name, level), images)
    scaled = expected.detach().requires_grad_()
    nn.functional.cross_entropy(scaled, labels).backward()
    expected.backward(scaled.grad * 1024)
    assert torch.equal(output, expected)
    for parameter_name, parameter in model.named_parameters():
        assert torch.equal(gradients[f"gradient:{parameter_name}"], parameter.grad / 1024), parameter_name


def test_levels_differ_in_what_they_round():
    torch.manual_seed(3)
    model = Attention()
    results = {}
    for level in (0, 1, 2):
        results[level] = step_of(half(model, compute_dtype="bfloat16", precision_opt_level=level), model)
    single, _ = step_of(half(model), model)
    errors = [float((results[level][0] - single).abs().max()) for level in (0, 1, 2)]
    assert 0 < errors[0] < min(errors[1:])
    key = "gradient:query.weight"  # behind the softmax
    assert len({results[level][1][key].sum().item() for level in (0, 1, 2)}) == 3


class Tokens(nn.Module):
    """A table of which a few rows are read, and attention that is one operation of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table((x.flatten(1)[:, :5] * 10).long().abs())[:, None]
        return self.head(nn.functional.scaled_dot_product_attention(rows, rows, rows).mean(dim=(1, 2)))


def test_a_table_is_rounded_by_its_rows_and_the_statistics_of_attention_not_at_all():
    torch.manual_seed(3)
    model = Tokens()
    result = half(model, compute_dtype="float16")
    nodes = [node for program in result.programs.values() for node in program.graph_module.graph.nodes]
    tables = [node for node in nodes if node.op == "placeholder" and tuple(node.meta["val"].shape) == (50, 6)]
    assert tables
    assert not any(user.meta.get("rounding") for table in tables for user in table.users)
    attention = next(node for node in nodes if "flash_attention_for_cpu.default" in str(node.target))
    output, statistics = sorted(attention.users, key=lambda node: node.args[1])
    assert all(user.meta.get("rounding") for user in output.users)
    assert not any(user.meta.get("rounding") for user in statistics.users)
    torch.testing.assert_close(step_of(result, model)[0], model(batch()[0]), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", FORMATS)
def test_a_program_holds_only_numbers_of_its_format(name):
    torch.manual_seed(3)
    model = Convolutions()
    output, gradients = step_of(half(model, compute_dtype=name), model)
    for value in (output, *gradients.values()):
        assert torch.equal(value, rounding(name)(value))


def test_bytes_on_the_wafer_and_the_plan_follow_the_format():
    single, *narrow = (half(Network(), compute_dtype=name) for name in ("float32", "float16", "cbfloat16"))
    assert narrow[0].plan.step_cycles == narrow[1].plan.step_cycles
    for result in narrow:
        assert result.graph.kernels[0].output_bytes * 2 == single.graph.kernels[0].output_bytes
        assert [k.operations for k in result.graph.kernels] == [k.operations for k in single.graph.kernels]


def test_precision_is_part_of_the_key():
    specs = [
        {},
        *({"compute_dtype": name} for name in FORMATS),
        {"compute_dtype": "float16", "precision_opt_level": 0},
        {"compute_dtype": "float16", "precision_opt_level": 2},
        {"compute_dtype": "float16", "scales_loss": True},
    ]
    keys = [half(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), **spec).key for spec in specs]
    assert len(set(keys)) == len(keys)


def test_a_scale_saves_gradients_that_float16_would_lose():
    torch.manual_seed(3)
    model = Convolutions()
    result = half(model, compute_dtype="float16", scales_loss=True)
    key = "gradient:0.weight"
    exact = step_of(half(model), model, weight=1e-6)[1][key]
    lost, kept = (step_of(result, model, scale, weight=1e-6)[1][key] for scale in (1.0, 2.0**20))
    assert float((lost - exact).norm() / exact.norm()) > 0.05
    assert float((kept - exact).norm() / exact.norm()) < 0.002


def test_a_dynamic_scale_moves_as_that_of_torch():
    rule = np.random.default_rng(5)
    finite = [bool(value) for value in rule.random(300) < 0.8]
    ours = LossScaler(scale=8.0, steps_per_increase=3)
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scales = []
    for good in finite:
        parameter.grad = torch.tensor([1.0, 1.0 if good else math.nan])
        theirs.scale(torch.tensor(1.0))
        theirs.step(optimizer)
        theirs.update()
        ours.step_is_over(all_finite([parameter.grad]))
        scales.append((ours.scale, theirs.get_scale()))
    assert all(own == other for own, other in scales)
    assert len({own for own, _ in scales}) > 5
    assert ours.skipped_steps == finite.count(False)


def test_a_scale_goes_on_from_its_state():
    whole, first, second = (LossScaler(4.0, 3) for _ in range(3))
    steps = [True, True, False, True, True, True, True, False, True, True, True]
    for good in steps:
        whole.step_is_over(good)
    for good in steps[:5]:
        first.step_is_over(good)
    second.load_state_dict(first.state_dict())
    for good in steps[5:]:
        second.step_is_over(good)
    assert second.state_dict() == whole.state_dict()
    static = LossScaler(1024.0)
    static.load_state_dict(first.state_dict())
    assert (static.scale, static.skipped_steps) == (1024.0, 1)


def test_a_scale_stays_a_number_that_float32_holds():
    scaler = LossScaler(1.0, 1)
    for _ in range(300):
        scaler.step_is_over(True)
    assert torch.tensor(scaler.scale).isfinite()
    for _ in range(600):
        scaler.step_is_over(False)
    assert torch.tensor(scaler.scale) > 0


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_bad_element_is_found_and_large_ones_are_not_bad(bad):
    good = [torch.full((3, 4), 3e38), torch.zeros(0), torch.tensor(-1e30)]
    assert all_finite(good)
    assert all_finite([])
    good[0][2, 1] = bad
    assert not all_finite(good)
