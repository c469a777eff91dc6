"""Faults to train against: what goes wrong on the simulated system, and when.

They come from the `faults` section of run.yaml, and to a run that trains already as lines of `faults.jsonl`.
"""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from cerebras_contract.model import ContractModel

FaultKind = Literal["lose_system", "slow_link", "defects", "stalled_input"]

# What else each kind takes: the first must be said.
_FIELDS: dict[FaultKind, tuple[str, ...]] = {
    "lose_system": (),
    "slow_link": ("factor", "steps"),
    "defects": ("count",),
    "stalled_input": ("seconds",),
}


class SentFault(ContractModel):
    """One fault, at a `step`; without one, at the next step that begins. A line of `faults.jsonl` is one as JSON.

    lose_system     the system is gone in this step; the run goes on from its newest checkpoint, on another
    slow_link       the link to the wafer is `factor` times slower, for so many `steps`, or to the end
    defects         so many processing elements fail (`count`)
    stalled_input   the step waits `seconds` of device time for its input
    """

    model_config = ConfigDict(strict=True)

    kind: FaultKind
    step: PositiveInt | None = None
    factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    steps: PositiveInt | None = None
    count: PositiveInt | None = None
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _says_what_its_kind_takes(self) -> Self:
        takes = _FIELDS[self.kind]
        said = [name for name in ("factor", "steps", "count", "seconds") if getattr(self, name) is not None]
        if takes[:1] and takes[0] not in said:
            raise ValueError(f"{self.kind} needs {takes[0]}")
        if others := [name for name in said if name not in takes]:
            raise ValueError(f"{self.kind} takes no {others[0]}")
        return self


class FaultSpec(SentFault):
    """One fault of a plan: at a `step`, or drawn at random, once in `mean_steps` on the average."""

    mean_steps: PositiveInt | None = None

    @model_validator(mode="after")
    def _says_when(self) -> Self:
        if (self.step is None) == (self.mean_steps is None):
            raise ValueError("say either step or mean_steps")
        if self.kind == "slow_link" and self.mean_steps and self.steps is None:
            raise ValueError("slow_link at random needs steps: how long it lasts")
        return self


class FaultPlan(ContractModel):
    """The `faults` section. The same seed draws the same faults, however often a run is cut off and goes on."""

    model_config = ConfigDict(strict=True)

    seed: NonNegativeInt = 0
    events: list[FaultSpec] = Field(default_factory=list)
