from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.workers.harness import Cluster, run_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with run_cluster(tmp_path) as running:
        yield running
