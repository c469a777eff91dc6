"""The run configuration: what run.yaml may say, in the vendor's names."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, NonNegativeInt, PositiveInt, StringConstraints

from cerebras_contract.digests import sha256_of_json
from cerebras_contract.faults import FaultPlan
from cerebras_contract.model import ContractModel

Quantity = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*=[A-Za-z0-9._-]*$")]


class RunConfigSection(ContractModel):
    """`runconfig` of run.yaml. None means: not said here, so a weaker source or the default decides."""

    model_config = ConfigDict(strict=True)  # '3' in quotes is not a number

    target_device: Literal["CPU", "CSX"] | None = None
    system: str | None = None
    num_csx: PositiveInt | None = None
    execution_mode: Literal["auto", "weight_streaming", "pipelined", "data_streaming"] | None = None
    """`data_streaming` is another word for pipelined."""
    codegen: Literal["interpret", "inductor"] | None = None
    """`inductor`: machine code is generated when the artifact is made."""
    micro_batch_size: PositiveInt | Literal["auto", "explore"] | None = None
    precision_opt_level: Literal[0, 1, 2] | None = None
    """Which values are rounded to 16 bits: 0 the fewest, 2 all."""
    max_steps: PositiveInt | None = None
    checkpoint_steps: NonNegativeInt | None = None
    keep_checkpoints: PositiveInt | None = None
    keep_checkpoints_every: PositiveInt | None = None
    checkpoint_path: str | None = None
    autoload_last_checkpoint: bool | None = None
    log_steps: PositiveInt | None = None
    prefetch_batches: NonNegativeInt | None = None
    """Batches that are prepared beside training, in a process of their own."""
    tensorboard: bool | str | None = None
    """A folder for event files of TensorBoard; true: `tensorboard`."""
    on_nan: Literal["fail", "warn"] | None = None
    """What is done about a loss that is not finite."""
    find_nan: bool | None = None
    """Look for the operation from which it came."""
    profile_steps: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None
    """The first and the last step of a profile."""
    deadlock_timeout_seconds: Quantity | None = None
    seed: NonNegativeInt | None = None
    compile_crd_memory_gi: Quantity | None = None
    compile_timeout_seconds: Quantity | None = None
    input_timeout_seconds: Quantity | None = None
    job_labels: list[Label] | None = None
    job_priority: Literal["p1", "p2", "p3"] | None = None


class RunConfiguration(ContractModel):
    """run.yaml. The sections other than `runconfig` are the user's own and reach the script as they are."""

    runconfig: RunConfigSection = RunConfigSection()
    model: dict[str, JsonValue] = Field(default_factory=dict)
    optimizer: dict[str, JsonValue] = Field(default_factory=dict)
    train_input: dict[str, JsonValue] = Field(default_factory=dict)
    eval_input: dict[str, JsonValue] = Field(default_factory=dict)
    faults: FaultPlan | None = None
    """What is to go wrong on the simulated system."""

    def said(self) -> dict[str, Any]:
        """The configuration as nested dictionaries, without what it leaves open."""
        return self.model_dump(mode="json", exclude_none=True)


# Keys that change a run but not the compiled program: left out of an artifact's keys.
RUN_TIME_KEYS: dict[str, frozenset[str]] = {
    "runconfig": frozenset(
        {
            "target_device", "max_steps", "checkpoint_steps", "log_steps", "seed", "job_labels", "job_priority",
            "compile_crd_memory_gi", "compile_timeout_seconds", "input_timeout_seconds",
            "keep_checkpoints", "keep_checkpoints_every", "checkpoint_path", "autoload_last_checkpoint",
            "tensorboard", "on_nan", "find_nan", "profile_steps", "prefetch_batches", "deadlock_timeout_seconds",
        }
    ),
    "optimizer": frozenset({"lr", "learning_rate", "loss_scale", "loss_scaling_factor"}),
}  # fmt: skip


def compile_time_digest(configuration: RunConfiguration) -> str:
    """Digest of what may change the compiled program: the configuration less `RUN_TIME_KEYS`.

    Nor does it cover `runconfig.system`: a key has that system's figures, whatever name or path they go by.
    """
    said = {name: section for name, section in configuration.said().items() if name != "faults"}
    left_out = RUN_TIME_KEYS | {"runconfig": RUN_TIME_KEYS["runconfig"] | {"system"}}
    sections = {
        name: {key: value for key, value in section.items() if key not in left_out.get(name, frozenset())}
        for name, section in said.items()
    }
    return sha256_of_json({name: section for name, section in sections.items() if section})
