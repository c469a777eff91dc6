"""Keeps what a user's process made: checkpoints and the artifact become blobs, checked by their manifests."""

from dataclasses import dataclass

from pydantic import ValidationError

from cerebras_contract.artifacts import MANIFEST_FILE, Manifest
from cerebras_contract.checkpoints import CHECKPOINT_MANIFEST_FILE, CheckpointManifest
from cerebras_contract.events import CheckpointEvent
from cerebras_contract.run_directory import RunDirectory, StageResult
from cerebras_controlplane.models import StoredFile
from cerebras_controlplane.storage.blobs import BlobStore
from cerebras_controlplane.worker.left_files import LeftFilesError, read_left, store_left

MAX_MANIFEST_BYTES = 64 << 20
MAX_RESULT_BYTES = 1 << 20
MAX_FILE_BYTES = 64 << 20
MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint whose files are blobs."""

    event: CheckpointEvent
    files: list[StoredFile]


@dataclass(frozen=True)
class KeptArtifact:
    """An artifact whose files are blobs."""

    artifact_key: str
    files: list[StoredFile]


def keep_checkpoint(blobs: BlobStore, directory: RunDirectory, event: CheckpointEvent) -> KeptCheckpoint:
    """Keep a checkpoint that is announced; raises `LeftFilesError` if it is not complete."""
    folder = directory.checkpoint(event.step).relative_to(directory.root).parts
    manifest_bytes = read_left(directory.root, *folder, CHECKPOINT_MANIFEST_FILE, limit_bytes=MAX_MANIFEST_BYTES)
    try:
        digests = CheckpointManifest.model_validate_json(manifest_bytes).digests
    except ValidationError:
        raise LeftFilesError(f"{CHECKPOINT_MANIFEST_FILE} is not a checkpoint's manifest") from None
    return KeptCheckpoint(event, _keep(blobs, directory, folder, CHECKPOINT_MANIFEST_FILE, digests))


def keep_artifact(blobs: BlobStore, directory: RunDirectory) -> KeptArtifact:
    """Keep the artifact in `compile/`; raises `LeftFilesError` if it is not complete."""
    folder = directory.compile.relative_to(directory.root).parts
    manifest_bytes = read_left(directory.root, *folder, MANIFEST_FILE, limit_bytes=MAX_MANIFEST_BYTES)
    try:
        manifest = Manifest.model_validate_json(manifest_bytes)
    except ValidationError:
        raise LeftFilesError(f"{MANIFEST_FILE} is not an artifact's manifest") from None
    files = _keep(blobs, directory, folder, MANIFEST_FILE, manifest.digests)
    return KeptArtifact(manifest.artifact_key, files)


def keep_file(blobs: BlobStore, directory: RunDirectory, path: str) -> StoredFile:
    """Keep a file of the run directory; raises `LeftFilesError` for one that is too large or that is none."""
    parts = path.split("/")
    if not parts[-1].isprintable() or len(parts[-1]) > MAX_NAME_CHARACTERS:
        raise LeftFilesError(f"{path[:MAX_NAME_CHARACTERS]!r} is no name that can be kept")
    return store_left(blobs, directory.root, *parts, limit_bytes=MAX_FILE_BYTES)


def keep_summary(blobs: BlobStore, directory: RunDirectory) -> StoredFile | None:
    """Keep `run_summary.json` as it is now; None where there is none that can be read."""
    try:
        return keep_file(blobs, directory, directory.summary.name)
    except LeftFilesError:
        return None


def _keep(
    blobs: BlobStore,
    directory: RunDirectory,
    folder: tuple[str, ...],
    manifest_name: str,
    digests: dict[str, str],
) -> list[StoredFile]:
    files = [
        store_left(blobs, directory.root, *folder, name, expected_sha256=sha256)
        for name, sha256 in sorted(digests.items())
        if name != manifest_name
    ]
    return [*files, store_left(blobs, directory.root, *folder, manifest_name)]


def read_result(directory: RunDirectory) -> StageResult | None:
    """How the process says it ended; None if it left no readable word."""
    try:
        data = read_left(directory.root, directory.result.name, limit_bytes=MAX_RESULT_BYTES)
        return StageResult.model_validate_json(data)
    except (LeftFilesError, ValidationError):
        return None
