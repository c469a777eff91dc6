"""Bundles: asked for by digest, uploaded if they are not there."""

import tempfile
from pathlib import Path
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi import Path as InPath

from cerebras_api.context import InContext
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.wire import BundleView
from cerebras_controlplane.uploads.service import find_bundle, keep_bundle

Digest = Annotated[str, InPath(pattern=r"^[0-9a-f]{64}$")]

router = APIRouter(tags=["bundles"], prefix="/bundles")


@router.get("/{sha256}")
def show_bundle(context: InContext, sha256: Digest) -> BundleView:
    """Whether a bundle was uploaded."""
    return find_bundle(context.sessions, sha256)


@router.put("/{sha256}", status_code=201)
async def upload_bundle(context: InContext, sha256: Digest, request: Request) -> BundleView:
    """Upload an uncompressed tar; its digest and members are checked."""
    with tempfile.NamedTemporaryFile(dir=context.settings.work_folder, prefix="upload-") as file:
        size_bytes = 0
        async for chunk in request.stream():
            size_bytes += len(chunk)
            if size_bytes > context.settings.max_bundle_bytes:
                raise _too_large(context.settings.max_bundle_bytes)
            await to_thread.run_sync(file.write, chunk)
        file.flush()
        return await to_thread.run_sync(
            keep_bundle, context.sessions, context.blobs, context.settings, sha256, Path(file.name)
        )


def _too_large(limit_bytes: int) -> ReportedError:
    return ReportedError(
        ErrorReport(
            code=ErrorCode.BUNDLE_INVALID,
            message=f"the bundle is larger than {limit_bytes} bytes",
            advice="Leave out what the job does not need, in `.cerebrasignore`.",
        )
    )
