"""Whose fault a failed compilation is: the user's model, or this compiler."""

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError


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
    ) -> None:
        super().__init__(ErrorReport(code=code, message=message, file=file, line=line, advice=advice))


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
