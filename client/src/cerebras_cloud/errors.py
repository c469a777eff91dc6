"""What can go wrong in the client, and the exit status of the command line for each."""

from enum import IntEnum

from cerebras_contract.errors import ERROR_PROPERTIES, ErrorCode, ErrorReport, Fault
from cerebras_contract.states import JobStatus


class ExitCode(IntEnum):
    """Every exit status of `cerebras-cloud`."""

    SUCCEEDED = 0
    FAILED = 1
    BAD_INPUT = 2
    AUTHENTICATION = 3
    NOT_FOUND = 4
    UNREACHABLE = 5
    INTERRUPTED = 130


EXIT_CODE_OF_JOB = {
    JobStatus.SUCCEEDED: ExitCode.SUCCEEDED,
    JobStatus.FAILED: ExitCode.FAILED,
    JobStatus.CANCELLED: ExitCode.INTERRUPTED,
}


class CloudError(Exception):
    """Base of the client's errors; its text is one readable message."""

    exit_code = ExitCode.FAILED


class BadInput(CloudError):
    """The command or the files it names cannot be used as they are."""

    exit_code = ExitCode.BAD_INPUT


class BundleError(BadInput):
    """A folder cannot be packed; the message names the path."""


class Unreachable(CloudError):
    """The cluster does not answer."""

    exit_code = ExitCode.UNREACHABLE


class NotRunning(Unreachable):
    """No cluster is running at this home."""


class ConnectionLost(Unreachable):
    """The cluster answered before and does not any more."""


class DownloadDamaged(CloudError):
    """Bytes arrived that do not have the digest the cluster announced."""


class ApiError(CloudError):
    """The cluster refused a request. `report` says why, `status` is the HTTP status."""

    def __init__(self, report: ErrorReport, status: int) -> None:
        super().__init__(str(report))
        self.report = report
        self.status = status
        self.exit_code = exit_code_of(report)


def exit_code_of(report: ErrorReport) -> ExitCode:
    """The exit status that a report leads to."""
    if report.code is ErrorCode.AUTHENTICATION_FAILED:
        return ExitCode.AUTHENTICATION
    if report.code is ErrorCode.NOT_FOUND:
        return ExitCode.NOT_FOUND
    if ERROR_PROPERTIES[report.code].fault is Fault.USER:
        return ExitCode.BAD_INPUT
    return ExitCode.FAILED
