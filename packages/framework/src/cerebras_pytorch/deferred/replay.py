"""Replays a tape on the CPU: the values that tensors on the meta device would have there."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils import _pytree as pytree

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.capture.stacks import first_line
from cerebras_pytorch.deferred.needed import Step, needed_for
from cerebras_pytorch.deferred.tape import Call, Draw, Part, Tape
from cerebras_pytorch.memory import is_out_of_memory

_aten = torch.ops.aten
WITHOUT_VALUES = frozenset(
    {_aten.empty, _aten.empty_strided, _aten.empty_permuted, _aten.empty_like, _aten.new_empty, _aten.new_empty_strided}
)
AtRest = Callable[[set[int]], object]
"""Told of the storages with a home that were used and that the next call does not use."""


class Replay:
    """Runs what is needed of a tape.

    `homes` are flat tensors of bytes, by storage, in which it is to end; `kept` are other storages that are wanted at
    the end. The memory of any other is taken where it begins and let go after its last use. `states` are the
    generators' after the draws that are asked for.
    """

    def __init__(
        self, tape: Tape, homes: Mapping[int, Tensor], *, kept: Collection[int] = (), draws: Collection[int] = ()
    ) -> None:
        self.states = dict(tape.known_states)
        self.needed = needed_for(tape, {*homes, *kept}, set(draws) - self.states.keys())
        self._tape = tape
        self._homes = homes
        self._memory = {storage: self._plain_memory(storage) for storage in self.needed.indifferent}
        self._workers: dict[Generator, Generator] = {torch.default_generator: torch.default_generator}
        self._stands_after: dict[Generator, int] = {}
        self._states_to_keep = {*draws, *self._returned_to()}

    def run(self, at_rest: AtRest = lambda _storages: None) -> None:
        """Raises `ReportedError` where a call cannot be made on the CPU."""
        steps = self.needed.steps
        with torch.no_grad(), _generator_kept(), torch.device("cpu"):
            for step, following in zip_longest(steps, steps[1:]):
                self._run_step(step)
                used_next = following.call.storages if following else set()
                at_rest((step.call.storages & self._homes.keys()) - used_next)
                for storage in step.ends:
                    del self._memory[storage]
            for generator, number in self._stands_after.items():  # a later replay need not begin before
                self._tape.known_states[number] = self._workers[generator].get_state()

    def tensor(self, part: Part) -> Tensor:
        """The real tensor that stands for a part."""
        memory = self._memory[part.storage]
        first = memory.storage_offset() // part.dtype.itemsize + part.offset
        empty = torch.empty(0, dtype=part.dtype, device="cpu")
        return empty.set_(memory.untyped_storage(), first, part.shape, part.strides)

    def _returned_to(self) -> Iterator[int]:
        """Draws whose end another draw goes on from later: a script has put a generator back there."""
        stands_after: dict[Generator, int] = {}
        for step in self.needed.steps:
            for draw in step.call.draws:
                if isinstance(draw.begins, int) and stands_after.get(draw.generator) != draw.begins:
                    yield draw.begins
                stands_after[draw.generator] = draw.number

    def _run_step(self, step: Step) -> None:
        call = step.call
        made = {part.storage for part in call.made}
        is_empty = getattr(call.function, "overloadpacket", None) in WITHOUT_VALUES
        for storage in step.begins if is_empty else step.begins - made:
            self._memory[storage] = self._new_memory(storage, step)
        if is_empty:
            return
        for draw in call.draws:
            self._begin(draw)
        results = self._results(call)
        for draw in call.draws:
            self._end(draw)
        for part, result in zip(pytree.tree_leaves(call.results), pytree.tree_leaves(results), strict=False):
            if isinstance(part, Part) and part.storage in made:
                self._take(part, result, step)

    def _results(self, call: Call) -> Any:
        args, kwargs = pytree.tree_map_only(Part, self.tensor, (call.args, call.kwargs))
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
        args, kwargs = pytree.tree_map_only(Generator, self._worker, (args, kwargs))
        try:
            return call.function(*args, **kwargs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise _not_replayed(call, error) from error

    def _new_memory(self, storage: int, step: Step) -> Tensor:
        if storage in step.begins_last and storage in self._homes:
            return self._homes[storage]
        return self._plain_memory(storage)

    def _plain_memory(self, storage: int) -> Tensor:
        return torch.empty(self._tape.size_bytes(storage), dtype=torch.uint8, device="cpu")

    def _take(self, part: Part, result: Tensor, step: Step) -> None:
        """A new result is copied into the memory of its storage, or becomes it."""
        size = self._tape.size_bytes(part.storage)
        if part.storage not in self._memory:
            stays = part.storage in step.begins_last and part.storage in self._homes
            has_form = (result.stride(), result.storage_offset()) == (part.strides, part.offset)
            if not stays and has_form and result.untyped_storage().nbytes() == size:
                empty = torch.empty(0, dtype=torch.uint8, device="cpu")
                self._memory[part.storage] = empty.set_(result.untyped_storage(), 0, (size,), (1,))
                return
            self._memory[part.storage] = self._new_memory(part.storage, step)
        self.tensor(part).copy_(result)

    def _worker(self, generator: Generator) -> Generator:
        """What draws in the place of a generator of the script's, which is left as it is."""
        return self._workers.setdefault(generator, torch.Generator())

    def _begin(self, draw: Draw) -> None:
        if not isinstance(draw.begins, int):
            self._worker(draw.generator).set_state(draw.begins)
        elif self._stands_after.get(draw.generator) != draw.begins:
            self._worker(draw.generator).set_state(self.states[draw.begins])

    def _end(self, draw: Draw) -> None:
        self._stands_after[draw.generator] = draw.number
        if draw.number in self._states_to_keep:
            self.states[draw.number] = self._worker(draw.generator).get_state()


def is_known(tape: Tape, tensor: Tensor) -> bool:
    """Whether a tape tells how a tensor on the meta device was made."""
    return not needed_for(tape, {tape.part(tensor).storage}, set()).unknown


def value_of(tape: Tape, tensor: Tensor) -> Tensor:
    """What a tensor on the meta device would be on the CPU."""
    if not is_known(tape, tensor):
        raise no_values(
            "a number was asked of a tensor on the meta device, and it is not known how that is initialised",
            'Make it inside `with torch.device("meta"):`, or on the CPU.',
        )
    part = tape.part(tensor)
    replay = Replay(tape, {}, kept={part.storage})
    replay.run()
    return replay.tensor(part)


def put_at_true_state(tape: Tape, generator: Generator) -> None:
    """Put a generator where it would be had all been drawn from it that a tape tells of."""
    number = tape.stands_for(generator)
    if number is None:
        return
    if number not in tape.known_states:
        replay = Replay(tape, {}, draws={number})
        replay.run()
        tape.known_states[number] = replay.states[number]
    generator.set_state(tape.known_states[number])


def no_values(message: str, advice: str, place: tuple[str | None, int | None] = (None, None)) -> ReportedError:
    file, line = place
    return ReportedError(
        ErrorReport(code=ErrorCode.RUN_NO_VALUES, message=message, file=file, line=line, advice=advice)
    )


def _not_replayed(call: Call, error: Exception) -> ReportedError:
    name = getattr(call.function, "__name__", None) or str(call.function)
    return no_values(
        f"the model was built on the meta device, and {name}, which initialises it, fails on the CPU:"
        f" {first_line(error)}",
        "Initialise it in another way, or build the model on the CPU.",
        call.place or (None, None),
    )


@contextmanager
def _generator_kept() -> Iterator[None]:
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
