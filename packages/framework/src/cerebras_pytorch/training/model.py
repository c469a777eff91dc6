"""The compiled model: what the user's loop calls in place of the model."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils import _pytree as pytree

from cerebras_contract.artifacts import Manifest, ProgramName, TensorSpec
from cerebras_pytorch.capture.batch import described, flat_tensors, specs_of
from cerebras_pytorch.capture.step import modules_in_eval_mode
from cerebras_pytorch.nn import bare_module
from cerebras_pytorch.training.refused_batch import batch_refused
from cerebras_pytorch.training.trained import Trained
from cerebras_wafer.errors import ArtifactMismatch
from cerebras_wafer.simulator.clock import DeviceClock
from cerebras_wafer.simulator.execute import Engine
from cerebras_wafer.simulator.streaming import AfterLayer


class CompiledModel(nn.Module):
    """Runs the artifact's programs on the parameters and buffers of the user's model.

    In train mode it takes batches of the compiled shape. In eval mode it takes any number of rows: a batch
    that is not full is padded, and only real rows come back.
    """

    def __init__(
        self, model: nn.Module, engine: Engine, manifest: Manifest, clock: DeviceClock, trained: Trained
    ) -> None:
        super().__init__()
        self.model = model
        self.whole_step: Callable[..., Tensor] | None = None
        self.batches_trained = 0
        self._engine = engine
        self._clock = clock
        self._manifest = manifest
        self._trained = trained
        self._output_tree = pytree.treespec_loads(manifest.output_tree)
        bare = self._bare = bare_module(model)
        self._names = {
            parameter: name
            for name, parameter in bare.named_parameters(remove_duplicate=False)
            if name in manifest.trained
        }
        self._weights = {
            **{f"parameter:{name}": tensor for name, tensor in bare.named_parameters(remove_duplicate=False)},
            **{f"buffer:{name}": tensor for name, tensor in bare.named_buffers(remove_duplicate=False)},
        }
        tangents = manifest.programs[ProgramName.BACKWARD].inputs
        self.differentiable = [int(role.split(":")[1]) for role in tangents if role.startswith("tangent:")]

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """What the model returns for these inputs, in the mode that the user's model is in."""
        if named:
            raise ArtifactMismatch(
                f"the compiled model takes its inputs in order, not by name ({', '.join(named)})",
                "Call it as compile does: with what the loader yields as inputs.",
            )
        inputs = flat_tensors(arguments)
        outputs = self._train(inputs) if self.model.training else self._evaluate(inputs)
        return self.nested(outputs)

    def nested(self, outputs: list[Tensor]) -> Any:
        """Flat outputs as the model returns them."""
        return pytree.tree_unflatten(outputs, self._output_tree)

    def train_step(self, *batch: Any) -> Tensor:
        """A whole training step as one call, `train_step(inputs, target)`; its loss.

        The same as zero_grad, forward, the criterion, backward and `optimizer.step()`. Where weights stream, each
        layer is updated inside backward, as soon as its gradient is complete, unless a step may be skipped for
        overflow. No gradients are left.
        """
        if self.whole_step is None:
            raise RuntimeError("train_step is for training: call it after compile, and before the context ends")
        return self.whole_step(*batch)

    def _train(self, inputs: list[Tensor]) -> list[Tensor]:
        self.check_batch(inputs)
        return list(_CompiledForward.apply(self, inputs, *self._names))  # type: ignore[no-untyped-call]

    def run_forward(self, inputs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs, and what backward needs; buffers of the user's model are updated."""
        with batch_refused("the forward pass"):
            result = self._engine.forward(self._weights, inputs)
        for name, value in result.buffers.items():
            self._weights[f"buffer:{name}"].copy_(value)
        return result.outputs, result.saved

    def run_backward(self, saved: list[Tensor], gradients: tuple[Tensor, ...]) -> list[Tensor | None]:
        """Gradients in the order of the parameters given to autograd. One batch is trained on then.

        Where weights stream the gradients are in the store, and the parameters'; autograd gets those with hooks alone.
        """
        tangents = [gradients[number] for number in self.differentiable]
        if not self._trained.is_streamed:
            by_name = self.gradients(saved, tangents)
            return [by_name[name] for name in self._names.values()]
        hooked = self._trained.hooked()
        by_name = self.gradients(saved, tangents, self._trained.accumulating() - hooked)
        self._trained.show_gradients(by_name.keys() - hooked)
        return [by_name[name].clone() if name in hooked else None for name in self._names.values()]

    def gradients(
        self,
        saved: list[Tensor],
        tangents: list[Tensor],
        accumulating: Iterable[str] = (),
        after_layer: AfterLayer | None = None,
    ) -> dict[str, Tensor]:
        """Gradients by name, as `Engine.backward` has them. One batch is trained on then."""
        by_name = self._engine.backward(saved, tangents, accumulating, after_layer)
        self._clock.advance_step()
        self.batches_trained += 1
        return by_name

    def is_differentiable(self, output: int) -> bool:
        return output in self.differentiable

    def _evaluate(self, inputs: list[Tensor]) -> list[Tensor]:
        self._check(inputs, whole_batch=False)
        parts = [self._evaluate_part(part) for part in self._parts(inputs)]
        return [self._joined(number, [part[number] for part in parts]) for number in range(len(parts[0]))]

    def _parts(self, inputs: list[Tensor]) -> Iterator[list[Tensor]]:
        """Inputs in pieces of at most the compiled batch size."""
        rows, size = inputs[0].shape[0], self._manifest.batch_size
        for start in range(0, rows, size):
            yield [tensor[start : start + size] for tensor in inputs]

    def _evaluate_part(self, inputs: list[Tensor]) -> list[Tensor]:
        rows, size = inputs[0].shape[0], self._manifest.batch_size
        padded = [_padded(tensor, size) for tensor in inputs] if rows < size else inputs
        with batch_refused("the evaluation"):
            outputs = self._engine.evaluate(self._weights, padded).outputs
        self._clock.advance_evaluation()
        return [value[:rows] if self._has_rows(number) else value for number, value in enumerate(outputs)]

    def _has_rows(self, output: int) -> bool:
        shape = self._manifest.outputs[output].shape
        return bool(shape) and shape[0] == self._manifest.batch_size

    def _joined(self, output: int, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts) if len(parts) > 1 and self._has_rows(output) else parts[-1]

    def _check(self, inputs: list[Tensor], *, whole_batch: bool) -> None:
        """Raise `ArtifactMismatch` where inputs are not of the compiled names, shapes and dtypes."""
        expected = self._manifest.inputs
        given = specs_of(inputs)
        if whole_batch and given == expected:
            return
        if (
            not whole_batch
            and [_row(spec) for spec in given] == [_row(spec) for spec in expected]
            and given[0].shape[0]
        ):
            return
        raise ArtifactMismatch(
            f"the model was compiled for inputs {described(expected)}, not {described(given)}",
            "Give it batches of the compiled shape, or compile for this one.",
        )

    def check_batch(self, inputs: list[Tensor]) -> None:
        """Raise `ArtifactMismatch` where a step with these inputs is not the one that was compiled."""
        self._check(inputs, whole_batch=True)
        self._check_modes()

    def _check_modes(self) -> None:
        """Raise `ArtifactMismatch` where a module was put in another mode since the step was compiled."""
        now = modules_in_eval_mode(self._bare)
        if now != self._manifest.in_eval_mode:
            changed = sorted(set(now) ^ set(self._manifest.in_eval_mode))
            raise ArtifactMismatch(
                f"{', '.join(changed)} changed between train and eval mode since it was compiled",
                "Put modules that stay in eval mode there before compile, and again after model.train().",
            )


class _CompiledForward(torch.autograd.Function):
    """Puts the compiled forward and backward into the user's autograd graph."""

    @staticmethod
    def forward(ctx: Any, model: CompiledModel, inputs: list[Tensor], *_: nn.Parameter) -> tuple[Tensor, ...]:
        outputs, ctx.saved = model.run_forward(inputs)
        ctx.model = model
        ctx.mark_non_differentiable(*(v for n, v in enumerate(outputs) if not model.is_differentiable(n)))
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        model, saved = ctx.model, ctx.saved  # type: ignore[attr-defined]
        if saved is None:
            raise RuntimeError("backward was called twice for one forward pass; its activations are gone")
        ctx.saved = None  # type: ignore[attr-defined]
        return (None, None, *model.run_backward(saved, gradients))


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """Repeat the first row, a value the model is made for, until there are `rows` of them."""
    filler = tensor[:1].expand(rows - tensor.shape[0], *tensor.shape[1:])
    return torch.cat([tensor, filler])


def _row(spec: TensorSpec) -> tuple[list[int], str]:
    return spec.shape[1:], spec.dtype
