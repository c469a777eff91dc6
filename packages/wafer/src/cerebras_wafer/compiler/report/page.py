"""The report as one page to look at: report.html, a single file that loads nothing.

Names in it (modules, files, warnings) come from the user's model. The template escapes them, the embedded data
writes `<` as an escape of JSON, the script puts them into the page as text only, and the policy in the page's
head lets no other script run and nothing be fetched.
"""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from cerebras_contract.plans import Plan
from cerebras_contract.reports import Report
from cerebras_wafer.compiler.report import units
from cerebras_wafer.compiler.report.page_data import page_data

SCRIPTS = ("marks.js", "wafer.js", "details.js", "timeline.js", "tables.js", "main.js")  # one script, in this order


def report_page(plan: Plan, report: Report) -> str:
    """The whole of report.html."""
    script = _script()
    return _template().render(
        plan=plan,
        report=report,
        data=page_data(plan, report),
        style=_asset("report.css"),
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        files=_source_files(plan),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("cerebras_wafer.compiler.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    for name in ("error_band", "readable_count", "readable_rate", "readable_seconds", "readable_size", "readable_sram"):
        environment.filters[name] = getattr(units, name)
    return environment.get_template("report.html.jinja")


@cache
def _script() -> str:
    return "\n".join(_asset(name) for name in SCRIPTS)


def _asset(name: str) -> str:
    return (files("cerebras_wafer.compiler.report") / "assets" / name).read_text(encoding="utf-8")


def _source_files(plan: Plan) -> list[str]:
    """The user's files that the kernels come from, the one with most kernels first."""
    counts: dict[str, int] = {}
    for kernel in plan.kernels:
        if kernel.source:
            file = kernel.source.rpartition(":")[0]
            counts[file] = counts.get(file, 0) + 1
    return sorted(counts, key=lambda file: -counts[file])
