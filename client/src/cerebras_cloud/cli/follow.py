"""Follows a job in the terminal: its output, how far it is, and at the end what became of it."""

import base64
from pathlib import Path

from cerebras_cloud.cli.jobs import current_stage
from cerebras_cloud.cli.output import command_line, readable_duration
from cerebras_cloud.cli.screen import Screen
from cerebras_cloud.client import Client
from cerebras_cloud.errors import EXIT_CODE_OF_JOB, ExitCode
from cerebras_contract.jobs import JobView, MetricPoint, StageView
from cerebras_contract.states import JobStatus, StageStatus
from cerebras_contract.wire import LogChunk, MetricBatch, StreamEnd

LOSS = "loss"
INSTRUMENTS = "device/"  # metrics of the simulated system: `cerebras-cloud metrics` has them


def follow_job(client: Client, job_id: str, home: Path | None) -> ExitCode:
    """Show a job from its first byte to its end. Ctrl-C ends the following, not the job."""
    screen = Screen.of_this_process()
    display = JobDisplay(screen)
    try:
        for event in client.jobs.follow(job_id, screen.say):
            match event:
                case LogChunk():
                    screen.write_log(base64.b64decode(event.data_base64))
                case MetricBatch():
                    display.metrics(event.points)
                case JobView():
                    display.job(event)
                case StreamEnd():
                    display.end(event.job, _checkpoint_lines(client, job_id, home))
                    return EXIT_CODE_OF_JOB[event.job.status]
    except KeyboardInterrupt:
        return _leave(screen, job_id, home)
    finally:
        screen.show_progress("")
    raise AssertionError("a follow ends with a StreamEnd or an error")


def follow_log(client: Client, job_id: str, home: Path | None) -> ExitCode:
    """Write a job's output to stdout until it ends, and nothing else."""
    screen = Screen.of_this_process()
    try:
        for event in client.jobs.follow(job_id, screen.say):
            if isinstance(event, LogChunk):
                screen.write_log(base64.b64decode(event.data_base64))
            elif isinstance(event, StreamEnd):
                return EXIT_CODE_OF_JOB[event.job.status]
    except KeyboardInterrupt:
        return _leave(screen, job_id, home)
    raise AssertionError("a follow ends with a StreamEnd or an error")


def _leave(screen: Screen, job_id: str, home: Path | None) -> ExitCode:
    screen.show_progress("")
    screen.say(
        f"{job_id} goes on without this terminal.\n"
        f"  follow it again:  {command_line(home, 'follow', job_id)}\n"
        f"  cancel it:        {command_line(home, 'jobs', 'cancel', job_id)}"
    )
    return ExitCode.INTERRUPTED


def _checkpoint_lines(client: Client, job_id: str, home: Path | None) -> list[str]:
    checkpoints = client.checkpoints.list(job_id)
    if not checkpoints:
        return []
    steps = ", ".join(str(checkpoint.step) for checkpoint in checkpoints)
    return [f"checkpoints of step {steps}: {command_line(home, 'checkpoint', 'download', job_id)}"]


class JobDisplay:
    """What a follow knows of its job so far, and how it is shown."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._job: JobView | None = None
        self._last_points: dict[str, MetricPoint] = {}
        self._shown_stages: list[str] = []

    def metrics(self, points: list[MetricPoint]) -> None:
        """Take new points."""
        self._last_points |= {point.name: point for point in points}
        self._show_progress()

    def job(self, job: JobView) -> None:
        """Take the job's new state. Without a progress line, each change of a stage is a line."""
        self._job = job
        if self._screen.shows_progress:
            self._show_progress()
            return
        stages = [describe_stage(stage) for stage in job.stages if stage.status is not StageStatus.WAITING]
        for line in stages:
            if line not in self._shown_stages:
                self._screen.say(line)
        self._shown_stages = stages

    def end(self, job: JobView, more: list[str]) -> None:
        """Say what became of the job."""
        self.job(job)
        self._screen.show_progress("")
        self._screen.say("\n".join([summary(job, self._last_points), *more]))
        if job.error is not None:
            self._screen.say(f"error: {job.error}")

    def _show_progress(self) -> None:
        if self._job is not None:
            self._screen.show_progress(progress_line(self._job, self._last_points))


def describe_stage(stage: StageView) -> str:
    """A stage's state in one line."""
    again = ": the worker of the last one stopped or was lost" if stage.attempts > 1 else ""
    attempt = f" (attempt {stage.attempts}{again})" if stage.attempts > 1 else ""
    why = ": its artifact exists already" if stage.status is StageStatus.SKIPPED else ""
    return f"{stage.kind} {stage.status}{attempt}{why}"


def progress_line(job: JobView, points: dict[str, MetricPoint]) -> str:
    """Stage, step, loss and rates. Wall rates are this machine's, device rates the simulated system's."""
    parts = [describe_stage(current_stage(job))]
    if job.step is not None:
        parts.append(f"step {job.step}" + (f"/{job.max_steps}" if job.max_steps else ""))
    if LOSS in points:
        parts.append(f"loss {points[LOSS].value:.4g}")
    if job.wall_samples_per_second is not None:
        parts.append(f"{job.wall_samples_per_second:,.0f} samples/s wall")
    if job.device_samples_per_second is not None:
        parts.append(f"{job.device_samples_per_second:,.0f} samples/s device")
    return "  ".join(parts)


def summary(job: JobView, points: dict[str, MetricPoint]) -> str:
    """The job's end for people: status, steps, the last value of each metric, the artifact."""
    took = "" if job.finished_at is None else f" after {readable_duration(job.finished_at - job.created_at)}"
    steps = "" if job.step is None else f", {job.step} steps"
    lines = [f"{job.id} {job.status}{took}{steps}"]
    trained = sorted((name, point) for name, point in points.items() if not name.startswith(INSTRUMENTS))
    lines += [f"  {name} {point.value:.6g} (step {point.step})" for name, point in trained]
    if job.artifact_key is not None:
        lines.append(f"  artifact {job.artifact_key}")
    if job.status is JobStatus.CANCELLED:
        lines.append("  It was cancelled.")
    return "\n".join(lines)
