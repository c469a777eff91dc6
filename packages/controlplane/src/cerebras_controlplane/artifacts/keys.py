"""The input key: everything that decides what compile makes, known before tracing."""

from cerebras_contract.artifacts import Versions
from cerebras_contract.configuration import compile_time_digest
from cerebras_contract.digests import sha256_of_json
from cerebras_contract.jobs import JobSpec
from cerebras_contract.systems import SystemSpec
from cerebras_controlplane.models import StoredFile


def source_key(files: list[StoredFile], spec: JobSpec, system: SystemSpec) -> str:
    """Digest of code, script, arguments, compile-time configuration and machine: what a submit knows.

    The configuration file itself is left out of the code: much of what it says does not change the program.
    """
    code = {file.name: file.sha256 for file in files if file.name != spec.configuration_path}
    return sha256_of_json(
        {
            "code": code,
            "script": spec.script,
            "arguments": spec.arguments,
            "configuration": compile_time_digest(spec.configuration),
            "system": system.model_dump(mode="json"),
        }
    )


def input_key(source: str, versions: Versions) -> str:
    """The source key together with the versions that compile it."""
    return sha256_of_json({"source": source, "versions": versions.model_dump(mode="json")})
