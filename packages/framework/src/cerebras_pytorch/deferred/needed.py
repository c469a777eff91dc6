"""What of a tape has to be called for some of its storages and draws, and how long each storage's memory is needed."""

from dataclasses import dataclass, field

from cerebras_pytorch.deferred.tape import Call, Tape


@dataclass
class Step:
    """A call that is needed. A storage that a call writes wholly begins anew there, so that what it held before can
    lie elsewhere: an initialiser that is replaced by a later one never touches the memory of the parameter."""

    call: Call
    begins: set[int] = field(default_factory=set)
    """Storages that get memory here."""
    begins_last: set[int] = field(default_factory=set)
    """Those of them that are wanted and get the memory in which they stay."""
    ends: set[int] = field(default_factory=set)
    """Storages whose memory is not needed any more."""


@dataclass(frozen=True)
class Needed:
    steps: list[Step]
    unknown: set[int]
    """Storages that are wanted, or that what is wanted is made from, and of which it is not known what is in them."""
    indifferent: set[int]
    """Others, into parts of which is drawn: how many numbers are does not depend on what is in them."""


def needed_for(tape: Tape, storages: set[int], draws: set[int]) -> Needed:
    """What is needed so that `storages` hold, at the end, what they are to, and the states after `draws` are known.

    An earlier draw from a generator is needed where a later one goes on from it, though its numbers are not.
    """
    live, draws, waiting, wanted = set(storages), set(draws), set(storages), set(storages)
    steps: list[Step] = []
    for call in reversed(tape.calls):
        if live.isdisjoint(call.changed) and draws.isdisjoint(draw.number for draw in call.draws):
            continue
        step = Step(call, ends=call.storages - live)
        step.begins = {part.storage for part in call.made} | _overwritten(tape, call)
        step.begins_last = step.begins & waiting
        waiting -= step.begins
        if not wanted.isdisjoint(call.changed):
            wanted |= call.storages
        live, wanted = (live | call.storages) - step.begins, wanted - step.begins
        draws |= {draw.begins for draw in call.draws if isinstance(draw.begins, int)} - tape.known_states.keys()
        steps.append(step)
    return Needed(steps[::-1], wanted, live - wanted)


def _overwritten(tape: Tape, call: Call) -> set[int]:
    """The storage that a call writes wholly without looking at what was in it, if any."""
    if not call.is_overwriting:
        return set()
    written, *others = call.arguments
    is_read = any(other.storage == written.storage for other in others)
    return set() if is_read or not written.fills(tape.size_bytes(written.storage)) else {written.storage}
