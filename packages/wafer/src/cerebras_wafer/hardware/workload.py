"""What the cost model needs to know of a model: the work of its layers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Work:
    """Work of one phase of a layer.

    `multiply_adds` are of activations with weights, `attention_multiply_adds` of activations with activations;
    `element_cycles` are PE-cycles of all that is done element by element.
    """

    multiply_adds: float = 0.0
    attention_multiply_adds: float = 0.0
    element_cycles: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.multiply_adds + other.multiply_adds,
            self.attention_multiply_adds + other.attention_multiply_adds,
            self.element_cycles + other.element_cycles,
        )

    def scaled(self, factor: float) -> "Work":
        return Work(self.multiply_adds * factor, self.attention_multiply_adds * factor, self.element_cycles * factor)


@dataclass(frozen=True)
class PhaseWork:
    """Work of a phase: for each sample, and once for each micro-batch (tables of positions, for one)."""

    sample: Work = field(default_factory=Work)
    once: Work = field(default_factory=Work)

    def of(self, samples: int) -> Work:
        return self.sample.scaled(samples) + self.once


@dataclass(frozen=True)
class LayerWork:
    """The work of one layer, or of `count` layers of equal work. Backward includes the loss.

    `weights` and `trained` are elements streamed in, and elements whose gradients are reduced out. Of a sample,
    `boundary_bytes` are results of other layers that the layer reads, kept until its backward; beside them it holds
    `forward_bytes` while forward runs and `backward_bytes` while backward runs, the half width of values included.
    A `sliced` layer ends in the loss: it can run forward, loss and backward a slice of the micro-batch after the
    other, so what it holds need not be on the wafer at once.
    """

    name: str
    count: int
    forward: PhaseWork
    backward: PhaseWork
    weights: int
    trained: int
    boundary_bytes: float
    forward_bytes: float
    backward_bytes: float
    sliced: bool

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """A layer from plain numbers, as in a file."""
        phases = {
            name: PhaseWork(Work(**data[name]["sample"]), Work(**data[name]["once"]))
            for name in ("forward", "backward")
        }
        return cls(**{**data, **phases})

    def as_data(self) -> dict[str, Any]:
        """The opposite of `from_data`."""
        return asdict(self)


Workload = tuple[LayerWork, ...]
