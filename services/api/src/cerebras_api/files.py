"""Answers with a stored file."""

from fastapi.responses import StreamingResponse

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_controlplane.models import StoredFile
from cerebras_controlplane.storage.blobs import BlobStore


def file_response(blobs: BlobStore, files: list[StoredFile], name: str) -> StreamingResponse:
    """The bytes of the file with exactly this name, its sha256 as ETag.

    A name is only looked up in the list, never joined to a path. User code wrote the bytes, so a browser
    must neither guess their type nor run them.
    """
    file = next((file for file in files if file.name == name), None)
    if file is None:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.NOT_FOUND,
                message=f"there is no file {name!r}",
                advice=f"There are: {', '.join(file.name for file in files)}." if files else "There is none so far.",
            )
        )
    return StreamingResponse(
        blobs.stream(file.sha256),
        media_type="application/octet-stream",
        headers={
            "ETag": f'"{file.sha256}"',
            "Content-Length": str(file.size_bytes),
            "Content-Disposition": "attachment",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox",
        },
    )
