"""`client.jobs`: submit, read, cancel and follow jobs."""

import uuid
from collections.abc import Callable, Iterator

from cerebras_cloud import stream
from cerebras_cloud.bundle import packed, readable_size
from cerebras_cloud.bundles import Bundles
from cerebras_cloud.errors import BundleError
from cerebras_cloud.stream import FollowEvent
from cerebras_cloud.submission import Submission
from cerebras_cloud.transport import Transport, idempotent, job_path
from cerebras_contract.faults import SentFault
from cerebras_contract.jobs import (
    JobEvent,
    JobEventList,
    JobPage,
    JobSpec,
    JobView,
    MetricPage,
    MetricPoint,
)
from cerebras_contract.wire import LOG_FINAL_HEADER, LOG_NEXT_OFFSET_HEADER

PAGE_JOBS = 100
PAGE_POINTS = 1000
LOG_CHUNK_BYTES = 1 << 20


class Jobs:
    """Jobs of the cluster. Every method may raise `ApiError` or `ConnectionLost`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._bundles = Bundles(transport)

    def submit(self, submission: Submission, tell: Callable[[str], object] = str) -> JobView:
        """Pack and upload a folder and create a job that runs a script of it.

        `tell` is given a line for each thing worth knowing: a size, what was left out and why.
        Also raises `BadInput` (`BundleError` for what cannot be packed).
        """
        script, system = submission.script_in_bundle(), submission.system_in_bundle()
        with packed(submission.folder) as bundle:
            for warning in bundle.warnings:
                tell(f"warning: {warning}")
            if script not in bundle.names:
                raise BundleError(f"the script {script} is left out by an ignore rule.")
            if system is not None and system not in bundle.names:
                raise BundleError(f"the system {system} is left out by an ignore rule.")
            tell(f"bundle: {bundle.files} files, {readable_size(bundle.content_bytes)}")
            if self._bundles.find(bundle.sha256) is None:
                self._bundles.upload(bundle)
            else:
                tell("the cluster has this bundle already")
        return self.create(submission.job_spec(bundle.sha256))

    def create(self, spec: JobSpec, idempotency_key: str | None = None) -> JobView:
        """Create a job from a bundle that is uploaded. A retry under the same key makes no second job."""
        headers = idempotent(idempotency_key or uuid.uuid4().hex) | {"Content-Type": "application/json"}
        body = spec.model_dump_json().encode()
        response = self._transport.request("POST", "/jobs", body=body, headers=headers)
        return JobView.model_validate_json(response.content)

    def get(self, job_id: str) -> JobView:
        return JobView.model_validate_json(self._transport.request("GET", job_path(job_id)).content)

    def list(self, limit: int | None = None) -> Iterator[JobView]:
        """Jobs, newest first, page by page; all of them where there is no limit."""
        left, cursor = limit, ""
        while left is None or left > 0:
            params = {"limit": min(PAGE_JOBS, left or PAGE_JOBS)} | ({"cursor": cursor} if cursor else {})
            page = JobPage.model_validate_json(self._transport.request("GET", "/jobs", params=params).content)
            yield from page.jobs
            if not page.next_cursor:
                return
            cursor, left = page.next_cursor, left and left - len(page.jobs)

    def cancel(self, job_id: str) -> JobView:
        """Ask for a job's end. It is over when its status says so; cancelling twice is no error."""
        return JobView.model_validate_json(self._transport.request("POST", job_path(job_id, "cancel")).content)

    def send_fault(self, job_id: str, fault: SentFault) -> JobView:
        """Let something go wrong on the system of a job that trains, or that will."""
        headers = idempotent(uuid.uuid4().hex) | {"Content-Type": "application/json"}
        body = fault.model_dump_json(exclude_none=True).encode()
        response = self._transport.request("POST", job_path(job_id, "faults"), body=body, headers=headers)
        return JobView.model_validate_json(response.content)

    def events(self, job_id: str) -> tuple[JobEvent, ...]:
        response = self._transport.request("GET", job_path(job_id, "events"))
        return tuple(JobEventList.model_validate_json(response.content).events)

    def logs(self, job_id: str, offset: int = 0) -> Iterator[bytes]:
        """The job's output so far, from byte `offset` on, byte for byte."""
        while True:
            params = {"offset": offset, "limit_bytes": LOG_CHUNK_BYTES}
            response = self._transport.request("GET", job_path(job_id, "logs"), params=params)
            next_offset = int(response.headers[LOG_NEXT_OFFSET_HEADER])
            yield response.content
            if next_offset == offset or response.headers.get(LOG_FINAL_HEADER) == "true":
                return
            offset = next_offset

    def metrics(self, job_id: str, name: str | None = None) -> Iterator[MetricPoint]:
        """The points recorded so far, in the order they were recorded."""
        after = 0
        while True:
            params: dict[str, str | int] = {"after": after, "limit": PAGE_POINTS}
            if name is not None:
                params["name"] = name
            response = self._transport.request("GET", job_path(job_id, "metrics"), params=params)
            page = MetricPage.model_validate_json(response.content)
            yield from page.points
            if not page.points or page.next_after == after:
                return
            after = page.next_after

    def follow(self, job_id: str, tell: Callable[[str], object] = str) -> Iterator[FollowEvent]:
        """What happens to the job, from its first byte to its `StreamEnd`, across dropped connections.

        `tell` is given a line when the cluster does not answer for a while.
        """
        return stream.follow(self._transport, job_id, tell)
