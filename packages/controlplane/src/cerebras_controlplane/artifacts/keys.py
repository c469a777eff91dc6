"""The input key: everything that decides what compile makes, known before tracing."""

from pathlib import PurePosixPath

from pydantic import JsonValue

from cerebras_contract.artifacts import Versions
from cerebras_contract.configuration import compile_time_digest
from cerebras_contract.digests import sha256_of_json
from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.jobs import JobSpec
from cerebras_contract.systems import DEFAULT_SYSTEM, is_system_file, load_system
from cerebras_controlplane.models import StoredFile


class MadeWith(Versions):
    """What a worker compiles with. `processor` counts where machine code is generated."""

    processor: str | None = None

    def for_job(self, spec: JobSpec) -> "MadeWith":
        """What of it decides what compile makes of this job."""
        generates_code = spec.configuration.runconfig.codegen == "inductor"
        return self if generates_code else self.model_copy(update={"processor": None})


def source_key(files: list[StoredFile], spec: JobSpec) -> str:
    """Digest of code, script, arguments, compile-time configuration and machine: what a submit knows.

    The configuration file itself is left out of the code: much of what it says does not change the program.
    Raises `ReportedError` for a system that there is not.
    """
    code = {file.name: file.sha256 for file in files if file.name != spec.configuration_path}
    return sha256_of_json(
        {
            "code": code,
            "script": spec.script,
            "arguments": spec.arguments,
            "configuration": compile_time_digest(spec.configuration),
            "system": _system(files, spec),
        }
    )


def system_of(spec: JobSpec) -> str:
    """The system that a job asks for: a name, or the path of a file in its bundle."""
    system = spec.configuration.runconfig.system or DEFAULT_SYSTEM
    return str(PurePosixPath(system)) if is_system_file(system) else system


def _system(files: list[StoredFile], spec: JobSpec) -> JsonValue:
    """The figures of a system by name; of a system from the bundle, the digest of its file, which is read where the
    user's code runs, not here."""
    system = system_of(spec)
    if not is_system_file(system):
        return load_system(system).model_dump(mode="json")
    digest = next((file.sha256 for file in files if file.name == system), None)
    if digest is None:
        raise ReportedError(
            ErrorReport(
                code=ErrorCode.CONFIG_INVALID,
                message=f"runconfig.system names the file {system}, which the bundle does not hold",
                advice="Name it by its path from the folder that is sent, and see that it is not ignored.",
            )
        )
    return digest


def input_key(source: str, made_with: MadeWith) -> str:
    """The source key together with what compiles it."""
    return sha256_of_json({"source": source, "versions": made_with.model_dump(mode="json", exclude_none=True)})
