"""Keeps uploaded bundles."""

from pathlib import Path

from sqlalchemy.orm import Session

from cerebras_contract.digests import sha256_of_file
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.wire import BundleView
from cerebras_controlplane.db import Sessions, now, reading, writing
from cerebras_controlplane.models import Bundle, StoredFile
from cerebras_controlplane.settings import Settings
from cerebras_controlplane.storage.blobs import BlobStore
from cerebras_controlplane.uploads.bundle import inspect_bundle


def find_bundle(sessions: Sessions, sha256: str) -> BundleView:
    """The bundle, or a `ReportedError` (request.not_found)."""
    with reading(sessions) as session:
        bundle = session.get(Bundle, sha256)
    if bundle is None:
        raise ReportedError(
            ErrorReport(code=ErrorCode.NOT_FOUND, message=f"there is no bundle {sha256}", advice="Upload it first.")
        )
    return _view(bundle)


def keep_bundle(sessions: Sessions, blobs: BlobStore, settings: Settings, sha256: str, path: Path) -> BundleView:
    """Check an uploaded tar and keep it; a second upload of the same bytes changes nothing."""
    if sha256_of_file(path) != sha256:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.BUNDLE_INVALID,
                message=f"what arrived is not the bundle {sha256}: its digest differs",
                advice="Upload it again.",
            )
        )
    files = inspect_bundle(path, settings.max_bundle_bytes, settings.max_bundle_files)
    with path.open("rb") as stream:
        blobs.put_stream(stream)
    with writing(sessions) as session:
        bundle = session.get(Bundle, sha256) or _add(session, sha256, path.stat().st_size, files)
    return _view(bundle)


def _add(session: Session, sha256: str, size_bytes: int, files: list[StoredFile]) -> Bundle:
    bundle = Bundle(sha256=sha256, size_bytes=size_bytes, files=files, created_at=now(session))
    session.add(bundle)
    return bundle


def _view(bundle: Bundle) -> BundleView:
    return BundleView(sha256=bundle.sha256, size_bytes=bundle.size_bytes, files=len(bundle.files))
