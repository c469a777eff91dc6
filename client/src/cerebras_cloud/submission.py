"""What a user wants to run, checked against the files of this machine."""

from dataclasses import dataclass, field
from pathlib import Path

from cerebras_cloud.errors import BadInput
from cerebras_contract.configuration import RunConfiguration
from cerebras_contract.jobs import CheckpointReference, JobSpec
from cerebras_contract.systems import is_system_file, load_system


@dataclass(frozen=True)
class Submission:
    """A script with its folder, arguments and configuration.

    `root` is the folder that travels and becomes the working directory; None means the script's own.
    `configuration_file` is where `configuration` was read from, if from a file.
    """

    script: Path
    root: Path | None = None
    arguments: tuple[str, ...] = ()
    name: str | None = None
    configuration: RunConfiguration = field(default_factory=RunConfiguration)
    configuration_file: Path | None = None
    from_checkpoint: CheckpointReference | None = None

    @property
    def folder(self) -> Path:
        return self.script.parent if self.root is None else self.root

    def script_in_bundle(self) -> str:
        """The script's path in the bundle; `BadInput` where the script or its folder cannot be submitted."""
        if not self.folder.is_dir():
            raise BadInput(f"there is no folder {self.folder}.")
        if not self.script.is_file():
            kind = "is a folder, not a script" if self.script.is_dir() else "does not exist"
            raise BadInput(f"{self.script} {kind}.")
        inside = path_in(self.folder, self.script)
        if inside is None:
            raise BadInput(f"{self.script} is not in {self.folder}: choose a --root that holds the script.")
        return inside

    def system_in_bundle(self) -> str | None:
        """The path in the bundle of a system of the user's own; None for one that comes with the emulator.

        `runconfig.system` is relative to the folder, the working directory of the job. Raises `BadInput` where the
        file does not travel, and `ReportedError` where it is no system.
        """
        system = self.configuration.runconfig.system
        if system is None or not is_system_file(system):
            return None
        inside = None if Path(system).is_absolute() else path_in(self.folder, self.folder / system)
        if inside is None:
            raise BadInput(f"the system {system} is not in {self.folder}: name it by its path from there.")
        load_system(str(self.folder / system))
        return inside

    def job_spec(self, bundle_sha256: str) -> JobSpec:
        """The job as the API takes it."""
        file = self.configuration_file
        configuration, system = self.configuration, self.system_in_bundle()
        if system is not None:
            runconfig = configuration.runconfig.model_copy(update={"system": system})
            configuration = configuration.model_copy(update={"runconfig": runconfig})
        return JobSpec(
            name=self.name,
            bundle=bundle_sha256,
            script=self.script_in_bundle(),
            arguments=list(self.arguments),
            configuration=configuration,
            configuration_path=None if file is None else path_in(self.folder, file),
            from_checkpoint=self.from_checkpoint,
        )


def path_in(folder: Path, file: Path) -> str | None:
    """`file` relative to `folder`, with forward slashes; None where it lies elsewhere. Links stay links."""
    real_file = file.parent.resolve() / file.name
    real_folder = folder.resolve()
    return real_file.relative_to(real_folder).as_posix() if real_file.is_relative_to(real_folder) else None
