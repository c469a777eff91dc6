from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.integration.workers.harness import make_settings, open_client

from cerebras_controlplane.db import Sessions, open_engine, open_sessions
from cerebras_controlplane.migrations.run import migrate
from cerebras_controlplane.settings import Settings

NOBODY_LISTENS = "redis://:canary-password@127.0.0.1:1/0"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    values = make_settings(tmp_path, NOBODY_LISTENS)
    migrate(values.database_url.get_secret_value())
    return values


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with open_client(settings) as opened:
        yield opened


@pytest.fixture
def sessions(settings: Settings) -> Sessions:
    return open_sessions(open_engine(settings.database_url.get_secret_value()))
