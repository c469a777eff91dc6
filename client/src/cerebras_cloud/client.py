"""The SDK's entrance.

with Client() as client:
    job = client.jobs.submit(Submission(Path("train.py")))
    for event in client.jobs.follow(job.id):
        ...
"""

from types import TracebackType
from typing import Self

from cerebras_cloud.bundles import Bundles
from cerebras_cloud.connection import Endpoint, find_endpoint
from cerebras_cloud.files import Artifacts, Checkpoints, Files
from cerebras_cloud.jobs import Jobs
from cerebras_cloud.transport import Patience, Transport
from cerebras_contract.wire import ClusterView


class Cluster:
    """The cluster as a whole."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self) -> ClusterView:
        return ClusterView.model_validate_json(self._transport.request("GET", "/cluster").content)


class Client:
    """A connection to one cluster: by default the one that `find_endpoint` finds. Close it, or use `with`."""

    def __init__(self, endpoint: Endpoint | None = None, patience: Patience | None = None) -> None:
        self._transport = Transport(endpoint or find_endpoint(), patience or Patience())
        self.jobs = Jobs(self._transport)
        self.bundles = Bundles(self._transport)
        self.checkpoints = Checkpoints(self._transport)
        self.artifacts = Artifacts(self._transport)
        self.files = Files(self._transport)
        self.cluster = Cluster(self._transport)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
