"""Replays a tape: the values that a model built on the meta device would have on the CPU, in memory that is given."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_pytorch.deferred.record import Call, Draw, Part, Tape

Allocate = Callable[[Tensor], Tensor]
"""Memory for a parameter or buffer: a tensor of the CPU of the same shape and dtype."""
Done = Callable[[list[Tensor]], object]
"""Told of pieces of that memory when they have values, and are not needed for a while."""

NOT_BY_VALUE = frozenset({torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default})


def give_values(model: nn.Module, tape: Tape, allocate: Allocate, done: Done) -> None:
    """Give a model's parameters and buffers on the meta device their values; the parameters stay the same objects.

    Bitwise what the CPU would have drawn. No random generator of the process is changed. Raises `ReportedError` where
    it is not known how one of them was initialised.
    """
    named = dict(_on_meta(model))
    for name, tensor in named.items():
        _refuse_unrecorded(name, tensor, tape)
    places = {name: allocate(tensor) for name, tensor in named.items()}
    homes = {tape.number_of(tensor): name for name, tensor in named.items() if _fills_its_storage(tensor)}
    given = {number: places[name].view(-1) for number, name in homes.items() if number is not None}
    replay = _Replay(tape, given, done)
    replay.keep({number for tensor in named.values() if (number := tape.number_of(tensor)) is not None})
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        replay.run()
    for name, tensor in named.items():
        if homes.get(tape.number_of(tensor)) != name:
            places[name].copy_(replay.tensor(tape.part(tensor)))
            done([places[name]])
        _put(model, name, tensor, places[name])


def _on_meta(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers on the meta device, each once."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            yield name, tensor


def _fills_its_storage(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


class _Replay:
    """Runs the calls of a tape on real tensors; a storage is let go after its last use."""

    def __init__(self, tape: Tape, homes: dict[int, Tensor], done: Done) -> None:
        self._tape = tape
        self._homes = homes
        self._given = set(homes)
        self._kept: set[int] = set()
        self._done = done
        self._generators: dict[int, torch.Generator] = {}

    def keep(self, storages: set[int]) -> None:
        """Storages that are still needed when the tape has ended."""
        self._kept = storages

    def run(self) -> None:
        last_use = {storage: place for place, call in enumerate(self._tape.calls) for storage in call.storages}
        for place, call in enumerate(self._tape.calls):
            self._call(call)
            self._done([self._homes[storage] for storage in call.storages & self._given])
            for storage in call.storages - self._given - self._kept:
                if last_use[storage] == place:
                    del self._homes[storage]

    def tensor(self, part: Part) -> Tensor:
        """The real tensor that stands for a part."""
        home = self._homes[part.storage].view(part.dtype)
        return home.as_strided(part.shape, part.strides, home.storage_offset() + part.offset)

    def _call(self, call: Call) -> None:
        if call.function in NOT_BY_VALUE and self._given.issuperset(call.storages):
            return
        args, kwargs = pytree.tree_map_only(Part, self.tensor, (call.args, call.kwargs))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        if call.draw:
            kwargs = self._with_generator(kwargs, call.draw)
        results = call.function(*args, **kwargs)
        pairs = zip(pytree.tree_leaves(call.results), pytree.tree_leaves(results), strict=False)
        for part, result in pairs:
            if isinstance(part, Part):
                self._take(part, result)

    def _with_generator(self, kwargs: dict[str, Any], draw: Draw) -> dict[str, Any]:
        """A generator of the script's is left where it is: a copy draws in its place."""
        if not draw.generator:
            if draw.state is not None:
                torch.set_rng_state(draw.state)
            return kwargs
        generator = self._generators.setdefault(draw.generator, torch.Generator())
        if draw.state is not None:
            generator.set_state(draw.state)
        return {**kwargs, "generator": generator}

    def _take(self, part: Part, result: Tensor) -> None:
        """A new result becomes the home of its storage; one for which memory was given is copied there."""
        if part.storage not in self._homes:
            size = result.untyped_storage().nbytes() // result.element_size()
            self._homes[part.storage] = result.as_strided((size,), (1,), 0)
        elif (place := self.tensor(part)).data_ptr() != result.data_ptr():
            place.copy_(result)


def _put(model: nn.Module, name: str, tensor: Tensor, place: Tensor) -> None:
    """Put real values where `tensor` is: a parameter stays the object that it is, as optimizers hold it."""
    if isinstance(tensor, nn.Parameter):
        try:
            torch.utils.swap_tensors(tensor, nn.Parameter(place, tensor.requires_grad))  # type: ignore[no-untyped-call]
        except RuntimeError:
            raise _no_values(
                f"{name} has no values and cannot be given any: a view of it is held, or autograd has used it",
                "Keep no views of parameters on the meta device: make them in forward.",
            ) from None
        return
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is tensor:
                module._buffers[name] = place


def _refuse_unrecorded(name: str, tensor: Tensor, tape: Tape) -> None:
    known = tape.number_of(tensor) is not None
    if known and not tape.is_changed(tensor):
        return
    what = "was changed outside of such a block after it" if known else "was not made inside of one"
    raise _no_values(
        f"the model has no values, and it is not known how {name} is initialised: how a model on the meta device is, is"
        f' recorded inside `with torch.device("meta"):`, and {name} {what}',
        'Build and initialise the model inside `with torch.device("meta"):`, inside of'
        " `with cbt.init_context() as context:`; or build it on the CPU.",
    )


def _no_values(message: str, advice: str) -> ReportedError:
    return ReportedError(ErrorReport(code=ErrorCode.RUN_NO_VALUES, message=message, advice=advice))
