"""What may be chosen of a comparison, and the command-line options that say it."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cerebras_contract.errors import ReportedError
from cerebras_contract.planning import MicroBatch, PassName, micro_batch, mode_word, pass_name, systems, whole_numbers

Value = TypeVar("Value")


@dataclass(frozen=True)
class PlanChoices:
    """None: as the script and its run.yaml say, or as the artifact was compiled."""

    systems: tuple[str, ...] | None = None
    batches: tuple[int, ...] | None = None
    num_csx: tuple[int, ...] | None = None
    mode: str | None = None
    micro_batch: MicroBatch | None = None
    max_steps: int | None = None
    print_after: PassName | None = None
    json: bool = False


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a comparison to a command."""
    add = parser.add_argument
    add("--system", type=_kind(systems), help="names or YAML files of systems, as in cs-2,my-wse4.yaml")
    add("--batch", type=_kind(whole_numbers), help="batch sizes, all systems together, as in 64,128")
    add("--num-csx", type=_kind(whole_numbers), help="numbers of systems that share a batch, as in 1,4")
    add("--mode", type=_kind(mode_word), help="auto, weight_streaming or pipelined")
    add("--micro-batch", type=_kind(micro_batch), help="auto, explore or a number of samples")
    add("--max-steps", type=_kind(_one_number), help="steps that time and system-hours are for")
    add("--print-after", type=_kind(pass_name), metavar="PASS", help=f"print what a pass leaves: {', '.join(PassName)}")
    add("--json", action="store_true", help="print the rows as JSON")


def choices_of(arguments: argparse.Namespace) -> PlanChoices:
    """What was chosen by the options of `add_options`."""
    return PlanChoices(
        systems=arguments.system,
        batches=arguments.batch,
        num_csx=arguments.num_csx,
        mode=arguments.mode,
        micro_batch=arguments.micro_batch,
        max_steps=arguments.max_steps,
        print_after=arguments.print_after,
        json=arguments.json,
    )


def _one_number(text: str) -> int:
    (number,) = whole_numbers(text.replace(",", " "))
    return number


def _kind(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """A reader of an option that says what is wrong in its own words."""

    def read(text: str) -> Value:
        try:
            return parse(text)
        except ReportedError as error:
            advice = f" ({error.report.advice})" if error.report.advice else ""
            raise argparse.ArgumentTypeError(error.report.message + advice) from None

    return read
