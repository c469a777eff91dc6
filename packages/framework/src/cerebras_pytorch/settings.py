"""The settings of a run, resolved from their sources by strength."""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from cerebras_contract.artifacts import Codegen, PrecisionLevel
from cerebras_contract.configuration import RunConfigSection
from cerebras_contract.planning import MODE_WORDS
from cerebras_contract.plans import Mode
from cerebras_contract.systems import DEFAULT_SYSTEM

CPU = "CPU"
CSX = "CSX"
DEFAULT_COMPILE_TIMEOUT_SECONDS = 3600.0  # real compiles of published models take 8 to 57 minutes
DEFAULT_INPUT_TIMEOUT_SECONDS = 300.0
DEFAULT_DEADLOCK_TIMEOUT_SECONDS = 3600.0  # an evaluation outside of the compiled model is no progress
TENSORBOARD_FOLDER = "tensorboard"
GIBIBYTE = 1 << 30


class RunConfig(RunConfigSection):
    """What a script sets by itself: `config = RunConfig(); config.max_steps = 1000`.

    The command line, run.yaml and, for a submitted job, the launcher win over it.
    """

    model_config = ConfigDict(frozen=False, validate_assignment=True)


@dataclass(frozen=True)
class RunSettings:
    """Settings that are decided. `max_steps` None: until the data ends. `checkpoint_steps` 0: never save."""

    target_device: str
    system: str
    num_csx: int
    execution_mode: str
    codegen: Codegen
    micro_batch_size: int | Literal["auto", "explore"]
    precision_opt_level: PrecisionLevel | None
    """None: what the script's `MixedPrecision` says."""
    max_steps: int | None
    checkpoint_steps: int
    keep_checkpoints: int | None
    """None: all."""
    keep_checkpoints_every: int | None
    """Those at multiples of so many steps are kept, too."""
    checkpoint_path: str | None
    autoload_last_checkpoint: bool
    log_steps: int
    prefetch_batches: int
    tensorboard: str | None
    """The folder of TensorBoard's event files."""
    on_nan: Literal["fail", "warn"]
    find_nan: bool
    profile_steps: tuple[int, int] | None
    """The first and the last step of a profile."""
    deadlock_timeout_seconds: float
    """How long training may make no progress."""
    seed: int
    compile_memory_bytes: int | None
    """What a compile may use; None: what the machine has free."""
    compile_timeout_seconds: float
    input_timeout_seconds: float
    """What the loader may take for its first batch."""

    @property
    def mode(self) -> Mode | None:
        """None: the compiler picks."""
        return MODE_WORDS[self.execution_mode]

    @property
    def has_device_time(self) -> bool:
        """On target CPU the whole workflow runs, without device time."""
        return self.target_device == CSX


def resolve(*sources: RunConfigSection) -> RunSettings:
    """The settings, where the first source that says something decides."""
    said: dict[str, object] = {}
    for source in reversed(sources):
        said.update(source.model_dump(exclude_none=True))
    merged = RunConfigSection.model_validate(said)
    memory_gi, tensorboard = merged.compile_crd_memory_gi, merged.tensorboard
    return RunSettings(
        target_device=merged.target_device or CPU,
        system=merged.system or DEFAULT_SYSTEM,
        num_csx=merged.num_csx or 1,
        execution_mode=merged.execution_mode or "auto",
        codegen=merged.codegen or "interpret",
        micro_batch_size=merged.micro_batch_size or "auto",
        precision_opt_level=merged.precision_opt_level,
        max_steps=merged.max_steps,
        checkpoint_steps=merged.checkpoint_steps or 0,
        keep_checkpoints=merged.keep_checkpoints,
        keep_checkpoints_every=merged.keep_checkpoints_every,
        checkpoint_path=merged.checkpoint_path,
        autoload_last_checkpoint=merged.autoload_last_checkpoint or False,
        log_steps=merged.log_steps or 100,
        prefetch_batches=merged.prefetch_batches or 0,
        tensorboard=TENSORBOARD_FOLDER if tensorboard is True else tensorboard or None,
        on_nan=merged.on_nan or "fail",
        find_nan=merged.find_nan or False,
        profile_steps=(merged.profile_steps[0], merged.profile_steps[1]) if merged.profile_steps else None,
        deadlock_timeout_seconds=merged.deadlock_timeout_seconds or DEFAULT_DEADLOCK_TIMEOUT_SECONDS,
        seed=merged.seed or 0,
        compile_memory_bytes=int(memory_gi * GIBIBYTE) if memory_gi else None,
        compile_timeout_seconds=merged.compile_timeout_seconds or DEFAULT_COMPILE_TIMEOUT_SECONDS,
        input_timeout_seconds=merged.input_timeout_seconds or DEFAULT_INPUT_TIMEOUT_SECONDS,
    )
