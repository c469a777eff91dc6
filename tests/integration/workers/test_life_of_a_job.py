"""A job from submit to its end, through real workers and a real queue."""

import pytest

from cerebras_contract.states import StageStatus
from tests.integration.workers.harness import TRAINING, Cluster

pytestmark = pytest.mark.integration


def test_a_job_compiles_then_executes(cluster: Cluster) -> None:
    cluster.start_workers()
    submitted = cluster.submit(TRAINING)
    job = cluster.finished(submitted.id)
    assert [stage.status for stage in job.stages] == [StageStatus.SUCCEEDED, StageStatus.SUCCEEDED]
    assert (job.step, job.max_steps) == (5, 5)
    assert cluster.log_of(job.id) == b"the beginning\n" + b"".join(b"step %d\n" % n for n in range(1, 6))
