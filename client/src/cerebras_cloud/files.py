"""`client.checkpoints`, `client.artifacts` and `client.files`: files, downloaded complete or not at all."""

import hashlib
import tempfile
import time
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import httpx

from cerebras_cloud.errors import BadInput, ConnectionLost, DownloadDamaged
from cerebras_cloud.transport import Transport, job_path
from cerebras_contract.jobs import ArtifactView, CheckpointList, CheckpointView, FileList, FileView
from cerebras_contract.run_directory import CHECKPOINT_FOLDER_PREFIX


class Checkpoints:
    """Checkpoints of a job, by step."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, job_id: str) -> tuple[CheckpointView, ...]:
        response = self._transport.request("GET", job_path(job_id, "checkpoints"))
        return tuple(CheckpointList.model_validate_json(response.content).checkpoints)

    def download(self, job_id: str, step: int | None = None, to: Path = Path("checkpoints")) -> Path:
        """Download the checkpoint of `step`, None for the latest, to the new folder `to`/step_N."""
        chosen = self.find(job_id, step)
        folder = to / f"{CHECKPOINT_FOLDER_PREFIX}{chosen.step}"
        url = job_path(job_id, "checkpoints", str(chosen.step), "files")
        _download_folder(self._transport, url, chosen.files, folder)
        return folder

    def find(self, job_id: str, step: int | None = None) -> CheckpointView:
        """The checkpoint of `step`, None for the latest. Raises `BadInput` where there is none."""
        checkpoints = {checkpoint.step: checkpoint for checkpoint in self.list(job_id)}
        if not checkpoints:
            raise BadInput(f"{job_id} has no checkpoint. `checkpoint_steps` in run.yaml says when one is saved.")
        chosen = max(checkpoints) if step is None else step
        if chosen not in checkpoints:
            steps = ", ".join(map(str, sorted(checkpoints)))
            raise BadInput(f"{job_id} has no checkpoint of step {chosen}. There are: {steps}.")
        return checkpoints[chosen]


class Artifacts:
    """The artifact that a job was executed from."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, job_id: str) -> ArtifactView:
        response = self._transport.request("GET", job_path(job_id, "artifact"))
        return ArtifactView.model_validate_json(response.content)

    def download(self, job_id: str, to: Path) -> Path:
        """Download every file of the artifact to the new folder `to`; returns it."""
        artifact = self.get(job_id)
        _download_folder(self._transport, job_path(job_id, "artifact", "files"), artifact.files, to)
        return to


class Files:
    """What a job's process has left beside its checkpoints: profiles, `run_summary.json`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, job_id: str) -> tuple[FileView, ...]:
        """The files that were kept, the newest last."""
        response = self._transport.request("GET", job_path(job_id, "files"))
        return tuple(FileList.model_validate_json(response.content).files)

    def download(self, job_id: str, name: str, to: Path) -> Path:
        """Download one of them to the file `to`, which is replaced if it is there; returns it."""
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as temporary:
            target = Path(temporary) / "file"
            _download_file(self._transport, job_path(job_id, "files", quote(name, safe="")), target)
            target.replace(to)
        return to

    def download_all(self, job_id: str, to: Path) -> Path:
        """Download every file to the new folder `to`; returns it. Raises `BadInput` where there is none."""
        names = [file.name for file in self.list(job_id)]
        if not names:
            raise BadInput(f"{job_id} has left no file: it has not begun to train.")
        _download_folder(self._transport, job_path(job_id, "files"), names, to)
        return to


def _download_folder(transport: Transport, url: str, names: list[str], folder: Path) -> None:
    """Fill a folder beside the target, then give it the target's name: half a download is never seen."""
    if folder.exists():
        raise BadInput(f"{folder} exists already. Remove it, or choose another place with --to.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        filling = Path(temporary) / folder.name
        filling.mkdir()
        for name in names:
            target = filling / _checked(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            _download_file(transport, f"{url}/{quote(name)}", target)
        filling.rename(folder)


def _checked(name: str) -> PurePosixPath:
    """A file's name as a path that stays in the folder, whatever the server says."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise DownloadDamaged(f"the cluster names a file {name!r}, which would lie outside the folder.")
    return path


def _download_file(transport: Transport, url: str, target: Path) -> None:
    """Download and check one file, again from its start after a lost connection or damage."""
    patience = transport.patience
    for attempt in range(patience.attempts):
        try:
            with transport.stream(url) as response:
                return _save(response, target)
        except (ConnectionLost, DownloadDamaged):
            if attempt + 1 == patience.attempts:
                raise
        time.sleep(patience.delay_seconds(attempt))
    return None


def _save(response: httpx.Response, target: Path) -> None:
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for chunk in response.iter_bytes():
            digest.update(chunk)
            file.write(chunk)
    expected = response.headers.get("ETag", "").removeprefix("W/").strip('"')
    if digest.hexdigest() != expected:
        raise DownloadDamaged(
            f"{target.name} arrived with sha256 {digest.hexdigest()}, announced was {expected or 'none'}."
        )
