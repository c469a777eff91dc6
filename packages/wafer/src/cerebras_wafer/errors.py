"""Whose fault a failed compilation is: the user's model, or this compiler."""

from collections.abc import Sequence

from cerebras_contract.errors import ErrorCode, ErrorReport, FaultReport, ReportedError


class CompileError(ReportedError):
    """The model cannot be compiled as it is written; the report says which part and what to do instead."""

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode = ErrorCode.COMPILE_UNSUPPORTED,
        file: str | None = None,
        line: int | None = None,
        advice: str | None = None,
        operation: str | None = None,
        module: str | None = None,
        faults: Sequence[FaultReport] = (),
    ) -> None:
        report = ErrorReport(
            code=code,
            message=message,
            file=file,
            line=line,
            advice=advice,
            operation=operation,
            module=module,
            faults=list(faults),
        )
        super().__init__(report)

    @classmethod
    def of_faults(cls, faults: list[FaultReport], summary: str) -> "CompileError":
        """One or more faults of one model; `summary` stands over a list of several."""
        return cls(**dict(ErrorReport.of_faults(faults, summary)))


class CompilerBug(ReportedError):
    """The compiler contradicts itself. Nothing in the user's model is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(
            ErrorReport(
                code=ErrorCode.COMPILER_BUG,
                message=f"bug in the compiler: {message}",
                advice="Please report it, with the script that shows it.",
            )
        )


class ArtifactMismatch(ReportedError):
    """The artifact is damaged, or was compiled for something else than what is being run."""

    def __init__(self, message: str, advice: str | None = None) -> None:
        super().__init__(ErrorReport(code=ErrorCode.RUN_ARTIFACT_MISMATCH, message=message, advice=advice))
