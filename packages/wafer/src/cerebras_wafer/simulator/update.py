"""Updates what is trained, in the store, by the artifact's update programs."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule

from cerebras_contract.artifacts import UpdateSpec
from cerebras_wafer.simulator.generated import Running
from cerebras_wafer.simulator.load import Artifact
from cerebras_wafer.simulator.store import Store, owner_of

CHUNK_ELEMENTS = 1 << 20  # of a flat update: small enough for a cache, large enough that calls cost little
LET_GO_ELEMENTS = 1 << 22  # so much of each kind is held at most while an update streams


class Updater:
    """The update programs of one artifact over one store."""

    def __init__(self, artifact: Artifact, store: Store) -> None:
        self._updates: list[_FlatUpdate | _WholeUpdate] = [
            _FlatUpdate(program, spec, names, store, code)
            if spec.elementwise
            else _WholeUpdate(program, spec, names, store)
            for program, spec, code in zip(
                artifact.updates, artifact.manifest.updates, artifact.update_code, strict=True
            )
            for names in spec.calls
        ]

    def update(self, names: Collection[str], rates: Sequence[Tensor]) -> None:
        """Update those of the named parameters that are trained, with their gradients in the store, and their state.

        `rates` are the learning rates of the parameter groups: float64 scalars.
        """
        by_role = {f"rate:{number}": rate for number, rate in enumerate(rates)}
        with torch.no_grad():
            for update in self._updates:
                update.update(names, by_role)


class _FlatUpdate:
    """An elementwise program over parameters that lie behind each other, in chunks that fit a processor's cache."""

    def __init__(
        self, program: GraphModule, spec: UpdateSpec, names: list[str], store: Store, code: Running | None
    ) -> None:
        self._program = program
        self._code, self._code_elements = code, spec.code.elements if spec.code else 0
        self._inputs, self._outputs = spec.inputs, spec.outputs
        self._names = names
        self._memory = store.memory
        roles = {role for role in (*spec.inputs, *spec.outputs) if not role.startswith("rate:")}
        blocks = {role: store.block(_role_in_call(role, names)) for role in roles}
        starts = list(blocks["parameter:0"].starts.values())
        self._bounds = list(zip(starts, [*starts[1:], blocks["parameter:0"].flat.numel()], strict=True))
        is_scalar = {role: store.tensors[_role_in_call(role, names)].dim() == 0 for role in roles}
        self._scalars = {role: block.flat for role, block in blocks.items() if is_scalar[role]}
        self._flat = {role: block.flat for role, block in blocks.items() if not is_scalar[role]}

    def update(self, names: Collection[str], rates: Mapping[str, Tensor]) -> None:
        for first, last in self._runs(names):
            changed: dict[str, Tensor] = {}
            for begin, end in self._chunks(self._bounds[first][0], self._bounds[last][1]):
                scalars = {role: _alone(flat[first]) for role, flat in self._scalars.items()}
                given = {**{role: flat[begin:end] for role, flat in self._flat.items()}, **scalars, **rates}
                changed = self._update_chunk(given, end - begin)
            for role, value in changed.items():
                self._scalars[role][first : last + 1] = value

    def _update_chunk(self, given: Mapping[str, Tensor], elements: int) -> dict[str, Tensor]:
        """Change the flat tensors of a chunk in place; the new scalars by role."""
        arguments = [given[role] for role in self._inputs]
        if self._code and elements == self._code_elements:
            self._code(arguments)
            return {role: given[role] for role in self._scalars}
        changed = dict(zip(self._outputs, self._program(arguments), strict=True))
        for role in self._flat.keys() & changed.keys():
            given[role].copy_(changed[role])
        return {role: changed[role] for role in self._scalars.keys() & changed.keys()}

    def _runs(self, names: Collection[str]) -> Iterator[tuple[int, int]]:
        """First and last of parameters that are updated together: they have a gradient, and equal counts of steps."""
        counts = list(zip(*(flat.tolist() for flat in self._scalars.values()), strict=True))
        first: int | None = None
        for place, name in enumerate(self._names):
            begins = first is None or (bool(counts) and counts[place] != counts[first])
            if first is not None and (name not in names or begins):
                yield first, place - 1
                first = None
            if name in names and first is None:
                first = place
        if first is not None:
            yield first, len(self._names) - 1

    def _chunks(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        held = begin
        elements = self._code_elements if self._code_elements == end - begin else CHUNK_ELEMENTS
        for start in range(begin, end, elements):
            stop = min(start + elements, end)
            yield start, stop
            if stop - held >= LET_GO_ELEMENTS or stop == end:
                self._memory.let_go(flat[held:stop] for flat in self._flat.values())
                held = stop


class _WholeUpdate:
    """A program over whole parameters: one, or all of an optimizer that updates them together."""

    def __init__(self, program: GraphModule, spec: UpdateSpec, names: list[str], store: Store) -> None:
        self._program = program
        self._names = names
        self._memory = store.memory
        self._inputs, self._outputs = (
            [_role_in_call(role, names) for role in roles] for roles in (spec.inputs, spec.outputs)
        )
        self._tensors = {role: store.tensors[role] for role in self._inputs if not role.startswith("rate:")}

    def update(self, names: Collection[str], rates: Mapping[str, Tensor]) -> None:
        """Where several are updated together, one without has a gradient of zero for the others' sake, and stays."""
        missing = [name for name in self._names if name not in names]
        if len(missing) == len(self._names):
            return
        zeros = {f"gradient:{name}": torch.zeros_like(self._tensors[f"parameter:{name}"]) for name in missing}
        given = {**self._tensors, **zeros, **rates}
        results = self._program([given[role] if given[role].dim() else _alone(given[role]) for role in self._inputs])
        for role, result in zip(self._outputs, results, strict=True):
            if not missing or owner_of(role) not in missing:
                self._tensors[role].copy_(result)
        self._memory.let_go(self._tensors.values())


def _alone(scalar: Tensor) -> Tensor:
    """With a memory of its own: where a program converts a view, PyTorch copies all that the view's memory holds."""
    return scalar.clone()


def _role_in_call(role: str, names: list[str]) -> str:
    """`state:0/exp_avg` of a program is `state:conv.weight/exp_avg` of a call for `conv.weight`."""
    kind, rest = role.split(":", 1)
    if kind == "rate":
        return role
    number, slash, key = rest.partition("/")
    return f"{kind}:{names[int(number)]}{slash}{key}"
