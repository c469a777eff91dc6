"""`make demo`: trains the MNIST example through a whole cluster. Exit status 0 only if it learned its digits."""

import shutil
import sys
from pathlib import Path

from local_cluster import cluster, run

from cerebras_cloud.client import Client
from cerebras_cloud.connection import find_endpoint
from cerebras_contract.states import JobStatus

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".demo" / "cluster"
RESULTS = ROOT / ".demo" / "results"
WANTED_ACCURACY = 0.95


def main() -> int:
    """Run the demo and return the exit status."""
    shutil.rmtree(RESULTS, ignore_errors=True)
    with cluster(HOME):
        status = run("submit", "train.py", "--config", "run.yaml", "--home", HOME, folder=ROOT / "examples" / "mnist")
        return status or _show_results()


def _show_results() -> int:
    with Client(find_endpoint(HOME)) as client:
        job = next(iter(client.jobs.list(limit=1)))
        artifact = client.artifacts.download(job.id, RESULTS / "compile")
        checkpoint = client.checkpoints.download(job.id, to=RESULTS / "checkpoints")
        accuracy = [point.value for point in client.jobs.metrics(job.id, "test_accuracy")][-1]
    report = (artifact / "report.txt").read_text(encoding="utf-8")
    print(f"\n{report.split('Kernels')[0].rstrip()}\n")
    print(f"Job            {job.id} {job.status}")
    print(f"Test accuracy  {accuracy:.1%} (wanted: {WANTED_ACCURACY:.0%})")
    print(f"Compile report {(artifact / 'report.html').relative_to(ROOT)}")
    print(f"Checkpoint     {checkpoint.relative_to(ROOT)}", flush=True)
    return 0 if job.status is JobStatus.SUCCEEDED and accuracy >= WANTED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
