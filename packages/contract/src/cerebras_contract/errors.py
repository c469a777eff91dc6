"""Error codes: one closed list, one table of their properties, one shape in which an error is reported."""

from dataclasses import dataclass
from enum import StrEnum

from cerebras_contract.model import ContractModel


class ErrorCode(StrEnum):
    """Why something failed. The part before the dot says in which room."""

    CONFIG_INVALID = "config.invalid"
    BUNDLE_INVALID = "bundle.invalid"
    BUNDLE_MISSING = "bundle.missing"
    SCRIPT_MISSING = "script.missing"
    SCRIPT_RAISED = "script.raised"
    SCRIPT_EXITED = "script.exited"
    SCRIPT_NEVER_COMPILED = "script.never_compiled"
    SCRIPT_COMPILED_TWICE = "script.compiled_twice"
    COMPILE_UNSUPPORTED = "compile.unsupported"
    COMPILE_BAD_BATCH = "compile.bad_batch"
    COMPILER_BUG = "compile.bug"
    RUN_ARTIFACT_MISMATCH = "run.artifact_mismatch"
    RUN_HYPERPARAMETER_CHANGED = "run.hyperparameter_changed"
    CHECKPOINT_INVALID = "checkpoint.invalid"
    PROCESS_KILLED = "process.killed"
    SANDBOX_UNAVAILABLE = "sandbox.unavailable"
    WORKER_LOST = "worker.lost"
    AUTHENTICATION_FAILED = "auth.failed"
    REQUEST_INVALID = "request.invalid"
    NOT_FOUND = "request.not_found"
    CONFLICT = "request.conflict"
    INTERNAL = "internal"


class Fault(StrEnum):
    """Who can mend it."""

    USER = "user"
    PLATFORM = "platform"


@dataclass(frozen=True)
class ErrorProperties:
    """What follows from a code: who can mend it, whether a stage is tried again, the HTTP status."""

    fault: Fault
    retried: bool
    http_status: int


_USER = ErrorProperties(Fault.USER, retried=False, http_status=422)
_PLATFORM = ErrorProperties(Fault.PLATFORM, retried=False, http_status=500)
_PLATFORM_RETRIED = ErrorProperties(Fault.PLATFORM, retried=True, http_status=500)

ERROR_PROPERTIES: dict[ErrorCode, ErrorProperties] = {
    ErrorCode.CONFIG_INVALID: _USER,
    ErrorCode.BUNDLE_INVALID: _USER,
    ErrorCode.BUNDLE_MISSING: _USER,
    ErrorCode.SCRIPT_MISSING: _USER,
    ErrorCode.SCRIPT_RAISED: _USER,
    ErrorCode.SCRIPT_EXITED: _USER,
    ErrorCode.SCRIPT_NEVER_COMPILED: _USER,
    ErrorCode.SCRIPT_COMPILED_TWICE: _USER,
    ErrorCode.COMPILE_UNSUPPORTED: _USER,
    ErrorCode.COMPILE_BAD_BATCH: _USER,
    ErrorCode.COMPILER_BUG: _PLATFORM,
    ErrorCode.RUN_ARTIFACT_MISMATCH: _USER,
    ErrorCode.RUN_HYPERPARAMETER_CHANGED: _USER,
    ErrorCode.CHECKPOINT_INVALID: _USER,
    ErrorCode.PROCESS_KILLED: _USER,
    ErrorCode.SANDBOX_UNAVAILABLE: _PLATFORM,
    ErrorCode.WORKER_LOST: _PLATFORM_RETRIED,
    ErrorCode.AUTHENTICATION_FAILED: ErrorProperties(Fault.USER, retried=False, http_status=401),
    ErrorCode.REQUEST_INVALID: _USER,
    ErrorCode.NOT_FOUND: ErrorProperties(Fault.USER, retried=False, http_status=404),
    ErrorCode.CONFLICT: ErrorProperties(Fault.USER, retried=False, http_status=409),
    ErrorCode.INTERNAL: _PLATFORM,
}


class ErrorReport(ContractModel):
    """An error as a person reads it: what happened, to which thing, where, and what to do next."""

    code: ErrorCode
    message: str
    file: str | None = None
    line: int | None = None
    advice: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        advice = f"\n  {self.advice}" if self.advice else ""
        return f"{place}{self.message} [{self.code}]{advice}"


class ReportedError(Exception):
    """An exception that carries an `ErrorReport`; what catches it shows the report, never a traceback of ours."""

    def __init__(self, report: ErrorReport) -> None:
        super().__init__(str(report))
        self.report = report
