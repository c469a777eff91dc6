"""The batches of an epoch that have the compiled shape, and what is done about others."""

from collections.abc import Callable, Iterator
from typing import Any

from cerebras_contract.artifacts import Manifest, TensorSpec
from cerebras_contract.errors import ErrorCode
from cerebras_pytorch.capture.batch import described, divide, specs_of
from cerebras_wafer.errors import CompileError


def full_batches(
    source: Iterator[Any], manifest: Manifest, leftovers: int, dropped: Callable[[int], None]
) -> Iterator[Any]:
    """The batches of one epoch that have the compiled shape.

    What is left over at the end and fills no batch is dropped, and `dropped` told its samples; where several workers
    each have some left over, up to `leftovers` such batches may lie anywhere. Any other batch raises `CompileError`
    with its number, counted from 1.
    """
    smaller: list[tuple[int, int]] = []
    for number, batch in enumerate(source, start=1):
        if smaller and (leftovers == 1 or len(smaller) > leftovers):
            raise _not_the_last(*smaller[-1], manifest.batch_size)
        divided = divide(batch)
        inputs, targets = specs_of(divided.inputs), specs_of(divided.target)
        if inputs == manifest.inputs and targets == manifest.targets:
            yield batch
        elif _is_smaller(inputs, manifest):
            smaller.append((number, divided.size))
            dropped(divided.size)
        elif inputs != manifest.inputs:
            raise _changed(number, "inputs", inputs, manifest.inputs)
        else:
            raise _changed(number, "targets", targets, manifest.targets)


def _is_smaller(inputs: list[TensorSpec], manifest: Manifest) -> bool:
    """Whether the inputs differ from the compiled ones only by fewer samples."""
    rows = inputs[0].shape[0]
    return rows < manifest.batch_size and inputs == [
        spec.model_copy(update={"shape": [rows, *spec.shape[1:]]}) for spec in manifest.inputs
    ]


def _not_the_last(number: int, samples: int, batch_size: int) -> CompileError:
    return CompileError(
        f"batch {number} of this epoch has {samples} samples and is not the last one: the model is compiled for"
        f" {batch_size}",
        code=ErrorCode.COMPILE_SHAPE_CHANGED,
        advice="Let every batch but the last of an epoch have the same number of samples.",
    )


def _changed(number: int, which: str, given: list[TensorSpec], compiled: list[TensorSpec]) -> CompileError:
    return CompileError(
        f"batch {number} of this epoch has {which} {described(given)}: the model is compiled for {described(compiled)}",
        code=ErrorCode.COMPILE_SHAPE_CHANGED,
        advice="Bring all samples to one shape in the dataset or its collate_fn: pad or cut texts to one length, images"
        " to one size.",
    )
