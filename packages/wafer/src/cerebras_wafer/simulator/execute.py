"""Execute the programs of an artifact with real arithmetic on this machine's processor.

Random operations (dropout) draw from a generator of the engine's own, so that what else the process draws,
a data loader for one, cannot change them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from cerebras_contract.artifacts import ProgramName
from cerebras_wafer.compiler.frontends.training_step import SCALE
from cerebras_wafer.simulator.failing import failed_program
from cerebras_wafer.simulator.load import Artifact
from cerebras_wafer.simulator.loss_scale import LossScaler, all_finite
from cerebras_wafer.simulator.nonfinite import NonFinite, first_non_finite
from cerebras_wafer.simulator.streaming import AfterLayer, Streamer, streamed_programs


@dataclass(frozen=True)
class ForwardResult:
    """Flat outputs in the order of the manifest, buffers that changed, and what backward needs."""

    outputs: list[Tensor]
    buffers: dict[str, Tensor]
    saved: list[Tensor]


class Engine:
    """Runs the programs of one artifact. Tensors go in and out by role; nothing is kept but random state.

    With `find_non_finite` what the last batch's programs were given is kept, too, so that the first operation whose
    output was not finite can be found: in `backward` where no loss scale mends that, else when it is asked for.
    """

    def __init__(
        self,
        artifact: Artifact,
        seed: int,
        loss_scaler: LossScaler | None = None,
        streamer: Streamer | None = None,
        *,
        find_non_finite: bool = False,
    ) -> None:
        self._programs = artifact.programs
        self._running = streamed_programs(artifact, streamer) if streamer else artifact.running
        self._streamer = streamer
        self._specs = artifact.manifest.programs
        self._loss_scaler = loss_scaler or LossScaler()
        self._kept: dict[ProgramName, tuple[list[Tensor], Tensor]] | None = {} if find_non_finite else None
        self._found: NonFinite | None = None
        precision = artifact.manifest.precision
        self._skips_overflow = precision.compute_dtype.layout.overflows_early or precision.scales_loss
        self.random_state: Tensor = torch.Generator().manual_seed(seed).get_state()

    def forward(self, weights: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> ForwardResult:
        """Forward in train mode. `weights` maps `parameter:NAME` and `buffer:NAME` to tensors.

        Raises `ProgramFailed` where an operation refuses the values of the batch; so do `evaluate` and `loss`.
        """
        return self._forward(ProgramName.FORWARD, weights, inputs)

    def evaluate(self, weights: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> ForwardResult:
        """Forward in eval mode, with the same arguments as `forward`; nothing is saved."""
        return self._forward(ProgramName.EVALUATE, weights, inputs)

    def loss(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The loss, a scalar that autograd can differentiate with respect to the outputs among `tensors`."""
        spec = self._specs[ProgramName.LOSS]
        arguments = [tensors[role] for role in spec.inputs]
        self._keep(ProgramName.LOSS, [tensor.detach() for tensor in arguments])
        (loss,) = self._run(ProgramName.LOSS, arguments)
        assert isinstance(loss, Tensor)
        return loss

    def backward(
        self,
        saved: list[Tensor],
        tangents: Sequence[Tensor],
        accumulating: Iterable[str] = (),
        after_layer: AfterLayer | None = None,
    ) -> dict[str, Tensor]:
        """Gradients by parameter name, from the gradients of the differentiable outputs. Empties `saved`.

        A program that scales gradients takes the loss scale as its last input. Where weights stream, the gradients
        are those of the store: new ones, or, of the parameters `accumulating`, added to what is there; `after_layer`
        is called as soon as those of a layer are complete.
        """
        spec = self._specs[ProgramName.BACKWARD]
        saved.extend(tangents)
        if spec.inputs[-1] == SCALE:
            saved.append(torch.tensor(self._loss_scaler.scale))
        self._keep(ProgramName.BACKWARD, saved)
        look = self._kept is not None and not self._skips_overflow
        if self._streamer:
            self._streamer.begin_backward(accumulating, after_layer, look=look)
        with torch.no_grad(), self._own_random_state():
            results = self._running[ProgramName.BACKWARD](saved)
        if self._streamer:
            gradients, is_finite = self._streamer.end_backward()
        else:
            gradients = {r.removeprefix("gradient:"): value for r, value in zip(spec.outputs, results, strict=True)}
            is_finite = not look or all_finite(results)
        if not is_finite:
            self._found = self._found or self._non_finite(ProgramName.BACKWARD)
        return gradients

    def _forward(self, name: ProgramName, weights: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> ForwardResult:
        spec = self._specs[name]
        batch = {f"input:{number}": tensor for number, tensor in enumerate(inputs)}
        arguments = [batch[role] if role in batch else weights[role] for role in spec.inputs]
        if name != ProgramName.EVALUATE:
            self._keep(name, arguments)
        with torch.no_grad(), self._own_random_state():
            results = self._run(name, arguments)
        by_role = dict(zip(spec.outputs, results, strict=True))
        return ForwardResult(
            outputs=[value for role, value in by_role.items() if role.startswith("output:")],
            buffers={r.removeprefix("buffer:"): v for r, v in by_role.items() if r.startswith("buffer:")},
            saved=[value for role, value in by_role.items() if role.startswith("saved:")],
        )

    def _run(self, name: ProgramName, arguments: list[Tensor]) -> Sequence[Tensor]:
        """The results of a program whose arguments others hold, too: batch, weights, outputs."""
        again, state = list(arguments), torch.get_rng_state()
        try:
            results: Sequence[Tensor] = self._running[name](arguments)
        except (IndexError, RuntimeError) as error:
            if "DefaultCPUAllocator" in str(error):  # no memory: that is no fault of the values
                raise
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                failure = failed_program(self._programs[name], again, error)
            raise failure from error
        return results

    def look_for_non_finite(self) -> None:
        """Find where the last batch's outputs or loss stopped being finite, if `find_non_finite` was said.

        Ask before weights are updated: they are looked at where they lie.
        """
        for name in (ProgramName.FORWARD, ProgramName.LOSS):
            self._found = self._found or self._non_finite(name)

    def take_found(self) -> NonFinite | None:
        """What was found, once: after that nothing is looked for any more."""
        found, self._found = self._found, None
        if found is not None:
            self._kept = None
        return found

    def _non_finite(self, name: ProgramName) -> NonFinite | None:
        if self._kept is None or name not in self._kept:
            return None
        arguments, state = self._kept[name]
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            return first_non_finite(self._programs[name], arguments, self._specs[name].inputs)

    def _keep(self, name: ProgramName, arguments: Sequence[Tensor]) -> None:
        if self._kept is not None:
            self._kept[name] = list(arguments), self.random_state

    @contextmanager
    def _own_random_state(self) -> Iterator[None]:
        """Swap the global random state for the engine's while a program runs."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        try:
            yield
        finally:
            self.random_state = torch.get_rng_state()
            torch.set_rng_state(outside)
