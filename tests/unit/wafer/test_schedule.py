"""Weight streaming: layers, micro-batches, what is held and streamed, and how far a plan is to be trusted."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.fixtures.published import two_blocks
from tests.fixtures.training import BATCH, Network, loader
from torch import nn

from cerebras_contract.artifacts import PrecisionSpec
from cerebras_contract.plans import Bound, Mode, Phase, Plan
from cerebras_contract.systems import load_system
from cerebras_pytorch.capture.batch import divide
from cerebras_pytorch.capture.step import capture_step
from cerebras_wafer.compiler.frontends.training_step import CompileOptions
from cerebras_wafer.compiler.ir.kernels import KernelGraph, KernelKind, Weight
from cerebras_wafer.compiler.ir.scale import scaled
from cerebras_wafer.compiler.passes.layers import layers_of
from cerebras_wafer.compiler.passes.schedule import schedule
from cerebras_wafer.compiler.passes.trust import family_of
from cerebras_wafer.compiler.pipeline import kernel_graph
from cerebras_wafer.errors import CompileError
from cerebras_wafer.hardware.calibration import calibration, constants_for

CS2 = load_system("cs-2")
HALF = CompileOptions("cs-2", 1, PrecisionSpec(compute_dtype="float16"))
BERT = "bert-base-classes"


def graph_of(model: nn.Module) -> KernelGraph:
    """The kernels of a model of small images, in 16 bits, for a batch of 8."""
    step = capture_step(
        model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters()), divide(next(iter(loader())))
    )
    return kernel_graph(step, HALF, lambda _line: None)[1]


@cache
def network() -> KernelGraph:
    """Convolution, batch norm, dropout, a pool and a linear layer."""
    return graph_of(Network())


def bert(samples: int, options: CompileOptions = HALF, graph: KernelGraph | None = None) -> Plan:
    """The plan of two blocks of BERT."""
    return schedule(scaled(graph or two_blocks(BERT), samples), options, CS2)


def as_large_as_published(graph: KernelGraph) -> KernelGraph:
    """Two blocks, and a weight that no kernel reads, of the size of those left out."""
    return replace(graph, weights=(*graph.weights, Weight("left_out", (80_000_000,), True, 0)))


def test_layers_begin_at_weights_that_are_multiplied_and_keep_the_order_of_forward():
    assert [layer.name for layer in schedule(network(), HALF, CS2).layers] == ["conv", "head"]
    assert [layer.name for layer in bert(8).layers] == ["tokens", "blocks.0", "blocks.1", "pooler", "classes"]


def test_every_kernel_but_the_update_is_in_one_layer():
    for graph in (network(), two_blocks(BERT)):
        inside = Counter(kernel.name for layer in layers_of(graph) for kernel in layer.kernels)
        assert inside == Counter(kernel.name for kernel in graph.kernels if kernel.phase != Phase.UPDATE)


def test_backward_of_a_block_is_in_the_blocks_layer():
    for layer in layers_of(two_blocks(BERT)):
        if layer.name.startswith("blocks."):
            modules = {kernel.module for kernel in layer.of(Phase.BACKWARD)}
            assert {f"{layer.name}.expand", f"{layer.name}.attention.query"} <= modules
            assert not [m for m in modules if m.startswith("blocks.") and not m.startswith(layer.name)]


def test_every_weight_is_streamed_by_a_layer():
    plan = bert(8)
    assert sum(layer.weight_bytes for layer in plan.layers) == plan.memory.weights_bytes // 2
    assert all(layer.gradient_bytes == layer.weight_bytes for layer in plan.layers)


def test_a_layer_takes_what_the_formula_says():
    constants, micro_batches = calibration("cs-2").constants, 0
    for plan in (bert(8), bert(2048)):
        for layer in plan.layers:
            streams = (layer.weights_in_cycles, layer.weights_in_cycles + layer.gradients_out_cycles)
            computing = (layer.forward_cycles, layer.backward_cycles)
            both = [max(a, b) + constants.exposed_share * min(a, b) for a, b in zip(computing, streams, strict=True)]
            assert layer.total_cycles == pytest.approx(sum(both) + layer.overhead_cycles, rel=1e-4)
            assert layer.overhead_cycles == pytest.approx(constants.layer_seconds * CS2.clock_hz, abs=1)
            micro_batches += 1
    assert micro_batches == 10


def test_a_step_is_its_layers_a_fixed_time_and_what_it_waits_for():
    plan = bert(4096)
    layers = plan.micro_batches_per_step * sum(layer.total_cycles for layer in plan.layers)
    assert plan.step_cycles == layers + plan.step_overhead_cycles + plan.input_wait_cycles
    assert plan.step_overhead_cycles == pytest.approx(calibration("cs-2").constants.step_seconds * CS2.clock_hz, abs=1)
    assert plan.input_wait_cycles > 0
    assert plan.bound == Bound.INPUT
    assert 0 < plan.evaluation_cycles <= plan.step_cycles


def test_the_cycles_of_the_layers_are_those_of_their_kernels():
    plan = bert(8)
    for layer in plan.layers:
        mine = [kernel for kernel in plan.kernels if kernel.layer == layer.name]
        assert layer.forward_cycles == sum(kernel.cycles for kernel in mine if kernel.phase == Phase.FORWARD)
        assert layer.backward_cycles == sum(
            kernel.cycles for kernel in mine if kernel.phase in (Phase.BACKWARD, Phase.LOSS)
        )


def test_layers_of_equal_work_are_planned_once():
    first, second = bert(8).layers[1:3]
    assert (first.planned_as, second.planned_as) == ("blocks.0", "blocks.0")
    assert first.total_cycles == second.total_cycles


def test_kernels_say_what_they_move_and_what_bounds_them():
    plan = bert(2048)
    kernels = {kernel.name: kernel for kernel in plan.kernels}
    expand = kernels["forward.blocks.0.expand.matmul"]
    weights = 2 * (768 * 3072 + 3072)
    assert expand.off_wafer_bytes == weights
    assert expand.fabric_bytes == weights + 2 * 2048 * 128 * 3072
    assert expand.bound == Bound.COMPUTE
    assert 0.5 < expand.utilization < 0.7
    assert expand.flops == 2 * 2048 * 128 * 768 * 3072
    held = 2 * 2048 * 128 * (768 + 3072) / CS2.processing_elements
    assert expand.sram_bytes_per_pe == pytest.approx(held, abs=1)
    gradient = kernels["backward.blocks.0.expand.matmul"]
    assert gradient.off_wafer_bytes == 2 * 768 * 3072 + weights  # the weight in; its gradient and the bias's out
    assert kernels["forward.tokens.embedding"].bound == Bound.WEIGHT_IO


def test_the_traffic_of_the_kernels_is_that_of_the_layers():
    plan = bert(8)
    forward = sum(kernel.off_wafer_bytes for kernel in plan.kernels if kernel.phase == Phase.FORWARD)
    assert forward == sum(layer.weight_bytes for layer in plan.layers)


def test_a_pe_holds_no_more_than_its_sram_and_backward_more_than_forward():
    for plan in (bert(8), bert(2048)):
        for layer in plan.layers:
            assert layer.forward_sram_bytes_per_pe <= layer.backward_sram_bytes_per_pe <= CS2.sram_bytes_per_pe
        assert plan.memory.peak_sram_bytes_per_pe == max(layer.backward_sram_bytes_per_pe for layer in plan.layers)


def test_auto_and_explore_try_the_divisors_and_take_the_fastest():
    plan = bert(96)
    assert [candidate.micro_batch for candidate in plan.candidates] == [96, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1]
    [chosen] = [candidate for candidate in plan.candidates if candidate.chosen]
    assert chosen.micro_batch == plan.micro_batch == 96
    assert chosen.step_seconds == min(candidate.step_seconds for candidate in plan.candidates)
    assert chosen.step_seconds == pytest.approx(plan.step_seconds, rel=1e-4)
    assert bert(96, replace(HALF, micro_batch="explore")).candidates == plan.candidates


def test_a_wanted_micro_batch_is_taken_and_is_slower():
    plan = bert(96, replace(HALF, micro_batch=8))
    assert (plan.micro_batch, plan.micro_batches_per_step) == (8, 12)
    assert plan.step_cycles > bert(96).step_cycles


def test_a_micro_batch_that_divides_no_batch_is_refused():
    with pytest.raises(
        CompileError, match="a micro-batch of 7 samples does not divide the 96 samples of a system"
    ) as e:
        bert(96, replace(HALF, micro_batch=7))
    assert "12, 16, 24" in (e.value.report.advice or "")


def test_a_micro_batch_that_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(CompileError, match=r"8192 samples does not fit: .* the wafer has room for 29.31 GB") as e:
        bert(8192, replace(HALF, micro_batch=8192))
    assert e.value.report.advice == "Choose auto, or at most 4096 samples."
    assert bert(8192).micro_batch == 4096


def test_a_sample_that_does_not_fit_is_planned_with_a_warning():
    plan = schedule(scaled(two_blocks(BERT), 64), HALF, load_system("tiny"))
    assert (plan.micro_batch, plan.warnings) == (1, [])
    small = load_system("tiny").model_copy(update={"sram_bytes_per_pe": 4096})
    plan = schedule(scaled(two_blocks(BERT), 64), HALF, small)
    [warning] = plan.warnings
    assert plan.micro_batch == 1
    assert "even 1 sample does not fit" in warning.message


def test_the_batch_is_divided_among_the_systems():
    two = bert(96, replace(HALF, num_csx=2))
    assert two.micro_batch == 48
    assert two.samples_per_second == pytest.approx(2 * bert(48).samples_per_second, rel=0.02)
    with pytest.raises(CompileError, match="96 samples cannot be divided evenly among 5 systems"):
        bert(96, replace(HALF, num_csx=5))


def test_the_mode_and_the_grid_are_those_of_the_system():
    plan = bert(8)
    assert (plan.mode, plan.fabric_columns, plan.fabric_rows, plan.fill) == (Mode.WEIGHT_STREAMING, 750, 994, 1.0)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm(6)) for _ in range(3)])
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.squeeze(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def test_a_block_of_a_list_is_one_layer_with_all_its_weights():
    plan = schedule(graph_of(Blocks()), HALF, CS2)
    assert [layer.name for layer in plan.layers] == ["blocks.0", "blocks.1", "blocks.2", "head"]
    weights = sum(parameter.numel() for parameter in Blocks().blocks[0].parameters())
    assert {layer.weight_bytes for layer in plan.layers[:3]} == {2 * weights}
    assert {layer.overhead_cycles for layer in plan.layers} == {plan.layers[0].overhead_cycles}


def test_a_transformer_like_those_measured_is_calibrated():
    trust = bert(512, graph=as_large_as_published(two_blocks(BERT))).trust
    stated = calibration("cs-2")
    assert (trust.calibrated, trust.family) == (True, "transformer")
    assert trust.mean_error == stated.held_out.mean
    assert trust.worst_error == max(stated.held_out.worst, stated.fit.worst, stated.left_out.worst)
    assert "held out" in trust.statement


def test_attention_that_no_kernel_covers_as_such_is_attention_still():
    graph = two_blocks(BERT)
    written_out = [
        replace(kernel, kind=KernelKind.MATMUL) if kernel.kind == KernelKind.ATTENTION else kernel
        for kernel in graph.kernels
    ]
    assert family_of(graph) == family_of(replace(graph, kernels=tuple(written_out))) == "transformer"


@pytest.mark.parametrize(
    ("samples", "options", "system", "reason"),
    [
        (512, HALF, "cs-1", "no rate of cs-1 was published; its constants are scaled from cs-2"),
        (512, replace(HALF, precision=PrecisionSpec()), "cs-2", "this is float32"),
        (16, HALF, "cs-2", "16 samples a system, measured were 99 to 16,384"),
        (512, HALF, "cs-3", "128 tokens a sample, measured were 1,024 to 2,048"),
    ],
)
def test_what_is_unlike_the_measured_is_not_calibrated_and_says_why(samples, options, system, reason):
    graph = scaled(as_large_as_published(two_blocks(BERT)), samples)
    trust = schedule(graph, options, load_system(system)).trust
    assert not trust.calibrated
    assert trust.worst_error is None
    assert reason in trust.statement


def test_models_of_other_kinds_are_not_calibrated():
    convolutional = schedule(network(), HALF, CS2).trust
    assert (convolutional.calibrated, convolutional.family) == (False, "convolutional network")
    perceptron = schedule(two_blocks("fc-mnist"), HALF, CS2).trust
    assert (perceptron.calibrated, perceptron.family) == (False, "perceptron")
    assert "fc_mnist" in perceptron.statement


def test_single_precision_streams_and_multiplies_slower():
    half, single = (schedule(network(), replace(HALF, precision=p), CS2) for p in (HALF.precision, PrecisionSpec()))
    assert single.layers[0].weight_bytes == 2 * half.layers[0].weight_bytes
    rate = constants_for(CS2, half_precision=False).multiply_adds_per_cycle
    assert rate < constants_for(CS2).multiply_adds_per_cycle
    assert single.batch_size == BATCH
