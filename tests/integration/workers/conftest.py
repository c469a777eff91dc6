from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.workers.harness import Cluster, run_cluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster with both workers, for the tests of a file that do not disturb it."""
    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        running.start_workers()
        yield running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with run_cluster(tmp_path) as running:
        yield running
