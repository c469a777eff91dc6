from pathlib import Path

import pytest

from cerebras_controlplane.db import Sessions, open_engine, open_sessions
from cerebras_controlplane.migrations.run import migrate
from cerebras_controlplane.storage.blobs import BlobStore


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    url = f"sqlite:///{tmp_path}/database.sqlite"
    migrate(url)
    return open_sessions(open_engine(url))


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")
