"""Error codes: one closed list, one table of their properties, one shape in which an error is reported."""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

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
    COMPILE_DATA_DEPENDENT = "compile.data_dependent"
    COMPILE_VALUE_READ = "compile.value_read"
    COMPILE_NO_KERNEL = "compile.no_kernel"
    COMPILE_DYNAMIC_SHAPE = "compile.dynamic_shape"
    COMPILE_CUSTOM_OPERATION = "compile.custom_operation"
    COMPILE_TORCHSCRIPT = "compile.torchscript"
    COMPILE_BAD_BATCH = "compile.bad_batch"
    COMPILE_SHAPE_CHANGED = "compile.shape_changed"
    COMPILE_INPUT_BLOCKED = "compile.input_blocked"
    COMPILE_TIMEOUT = "compile.timeout"
    COMPILE_OUT_OF_MEMORY = "compile.out_of_memory"
    COMPILER_BUG = "compile.bug"
    DATA_INVALID = "data.invalid"
    RUN_ARTIFACT_MISMATCH = "run.artifact_mismatch"
    RUN_HYPERPARAMETER_CHANGED = "run.hyperparameter_changed"
    RUN_NO_VALUES = "run.no_values"
    RUN_NAN = "run.nan"
    RUN_OUT_OF_MEMORY = "run.out_of_memory"
    RUN_DEADLOCK = "run.deadlock"
    RUN_DISK_FULL = "run.disk_full"
    RUN_SYSTEM_LOST = "run.system_lost"
    CHECKPOINT_INVALID = "checkpoint.invalid"
    CHECKPOINT_MISMATCH = "checkpoint.mismatch"
    CHECKPOINT_NOT_SAVED = "checkpoint.not_saved"
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
    ErrorCode.COMPILE_DATA_DEPENDENT: _USER,
    ErrorCode.COMPILE_VALUE_READ: _USER,
    ErrorCode.COMPILE_NO_KERNEL: _USER,
    ErrorCode.COMPILE_DYNAMIC_SHAPE: _USER,
    ErrorCode.COMPILE_CUSTOM_OPERATION: _USER,
    ErrorCode.COMPILE_TORCHSCRIPT: _USER,
    ErrorCode.COMPILE_BAD_BATCH: _USER,
    ErrorCode.COMPILE_SHAPE_CHANGED: _USER,
    ErrorCode.COMPILE_INPUT_BLOCKED: _USER,
    ErrorCode.COMPILE_TIMEOUT: _USER,
    ErrorCode.COMPILE_OUT_OF_MEMORY: _USER,
    ErrorCode.COMPILER_BUG: _PLATFORM,
    ErrorCode.DATA_INVALID: _USER,
    ErrorCode.RUN_ARTIFACT_MISMATCH: _USER,
    ErrorCode.RUN_HYPERPARAMETER_CHANGED: _USER,
    ErrorCode.RUN_NO_VALUES: _USER,
    ErrorCode.RUN_NAN: _USER,
    ErrorCode.RUN_OUT_OF_MEMORY: _USER,
    ErrorCode.RUN_DEADLOCK: _USER,
    ErrorCode.RUN_DISK_FULL: _USER,
    ErrorCode.RUN_SYSTEM_LOST: _PLATFORM_RETRIED,
    ErrorCode.CHECKPOINT_INVALID: _USER,
    ErrorCode.CHECKPOINT_MISMATCH: _USER,
    ErrorCode.CHECKPOINT_NOT_SAVED: _USER,
    ErrorCode.PROCESS_KILLED: _USER,
    ErrorCode.SANDBOX_UNAVAILABLE: _PLATFORM,
    ErrorCode.WORKER_LOST: _PLATFORM_RETRIED,
    ErrorCode.AUTHENTICATION_FAILED: ErrorProperties(Fault.USER, retried=False, http_status=401),
    ErrorCode.REQUEST_INVALID: _USER,
    ErrorCode.NOT_FOUND: ErrorProperties(Fault.USER, retried=False, http_status=404),
    ErrorCode.CONFLICT: ErrorProperties(Fault.USER, retried=False, http_status=409),
    ErrorCode.INTERNAL: _PLATFORM,
}


class FaultReport(ContractModel):
    """One fault as a person reads it: what happened, to which thing, where, and what to do next.

    `operation` and `module` (the path of a module of the model) are there where the fault has them.
    """

    code: ErrorCode
    message: str
    file: str | None = None
    line: int | None = None
    advice: str | None = None
    operation: str | None = None
    module: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        advice = f"\n  {self.advice}" if self.advice else ""
        return f"{place}{self.message} [{self.code}]{advice}"


class ErrorReport(FaultReport):
    """Why something failed. Where several faults were found, they are listed, and the first gives code and place."""

    faults: list[FaultReport] = Field(default_factory=list)

    @classmethod
    def of_faults(cls, faults: list[FaultReport], summary: str) -> "ErrorReport":
        """The report of one or more faults; `summary` is the sentence over a list of several."""
        if len(faults) == 1:
            return cls(**faults[0].model_dump())
        first = faults[0].model_dump(exclude={"message", "advice"})
        return cls(**first, message=summary, faults=faults)

    def __str__(self) -> str:
        if not self.faults:
            return super().__str__()
        listed = [f"{number}. {fault}".replace("\n", "\n   ") for number, fault in enumerate(self.faults, start=1)]
        return "\n".join([self.message, *listed])


class ReportedError(Exception):
    """An exception that carries an `ErrorReport`; what catches it shows the report, never a traceback of ours."""

    def __init__(self, report: ErrorReport) -> None:
        super().__init__(str(report))
        self.report = report
