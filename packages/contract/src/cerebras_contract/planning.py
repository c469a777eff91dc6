"""Planning without a job: the rows of its comparison, and how its options are written."""

from enum import StrEnum
from typing import Literal

from cerebras_contract.model import ContractModel
from cerebras_contract.plans import Bound, Mode
from cerebras_contract.systems import is_system_file, load_system
from cerebras_contract.yaml_reader import invalid

ANY_MODE = "auto"
MODE_WORDS: dict[str, Mode | None] = {
    ANY_MODE: None,
    **{str(mode): mode for mode in Mode},
    "data_streaming": Mode.PIPELINED,  # an older word for it
}
MicroBatch = int | Literal["auto", "explore"]


class PassName(StrEnum):
    """Passes of the compiler in their order; the text of what a pass leaves can be printed after it."""

    PRECISION = "precision"
    PARTITION = "partition"
    MATCH = "match"
    FUSE = "fuse"
    PLAN = "plan"


class PlanRow(ContractModel):
    """One combination of system, number of systems and batch, and what a training step would take.

    `reason` says why the mode was taken, or, where it does not fit, why not; what is then unknown is None.
    `samples_per_second` are of all systems together. `utilization` is a fraction of the dense peak, `error_band` the
    worst error of an estimate of this kind, a fraction, None where nothing comparable was measured.
    `system_hours` are for all steps, None where nothing says how many.
    """

    system: str
    num_csx: int
    batch: int
    mode: Mode | None
    fits: bool
    reason: str
    micro_batch: int | None = None
    samples_per_second: float | None = None
    utilization: float | None = None
    bound: Bound | None = None
    step_seconds: float | None = None
    system_hours: float | None = None
    calibrated: bool | None = None
    error_band: float | None = None


def whole_numbers(text: str) -> tuple[int, ...]:
    """`64,128` as numbers above 0. Raises `ReportedError`, as the functions below do."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise invalid(f"expected whole numbers above 0, as in 64,128, not {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def systems(text: str) -> tuple[str, ...]:
    """`cs-2,my-wse4.yaml` as names and paths of systems; a file is not read yet."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if not is_system_file(name):
            load_system(name)
    return names


def mode_word(text: str) -> str:
    """`auto`, a mode, or an older word for one."""
    if text not in MODE_WORDS:
        raise invalid(f"expected one of {', '.join(MODE_WORDS)}, not {text!r}")
    return text


def pass_name(text: str) -> PassName:
    """A pass by its name."""
    if text not in [*PassName]:
        raise invalid(f"expected one of {', '.join(PassName)}, not {text!r}")
    return PassName(text)


def micro_batch(text: str) -> MicroBatch:
    """`auto`, `explore`, or a number of samples."""
    match text:
        case "auto" | "explore":
            return text
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise invalid(f"expected auto, explore or a whole number above 0, not {text!r}")
    return int(text)
