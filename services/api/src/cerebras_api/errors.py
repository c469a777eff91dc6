"""Every answer that is not a success is an `ErrorResponse`."""

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from cerebras_contract.errors import ERROR_PROPERTIES, ErrorCode, ErrorReport, ReportedError
from cerebras_contract.wire import ErrorResponse

log = structlog.get_logger()


def error_response(report: ErrorReport, status: int | None = None) -> JSONResponse:
    """The answer that carries a report, by default with the status of its code."""
    return JSONResponse(
        ErrorResponse(error=report).model_dump(mode="json"),
        status_code=status or ERROR_PROPERTIES[report.code].http_status,
    )


def handle_errors(app: FastAPI) -> None:
    """Give the application its four answers to exceptions."""

    @app.exception_handler(ReportedError)
    def reported(_request: Request, error: ReportedError) -> JSONResponse:
        return error_response(error.report)

    @app.exception_handler(RequestValidationError)
    def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        # Names of fields and what is wrong with them, never the values: they may be secrets.
        faults = [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()]
        return error_response(
            ErrorReport(code=ErrorCode.REQUEST_INVALID, message="; ".join(faults), advice="See /docs for the API.")
        )

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        code = ErrorCode.NOT_FOUND if error.status_code == 404 else ErrorCode.REQUEST_INVALID
        message = f"{error.detail}: {request.method} {request.url.path}"
        return error_response(
            ErrorReport(code=code, message=message, advice="See /docs for the API."), error.status_code
        )

    @app.exception_handler(Exception)
    def internal(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed by a fault of ours", path=request.url.path, exc_info=error)
        return error_response(
            ErrorReport(
                code=ErrorCode.INTERNAL,
                message="the API failed to answer",
                advice="The API's log says why; please report it.",
            )
        )
