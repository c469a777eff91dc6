"""Settings of the services: environment variables with the prefix CEREBRAS_."""

import sys
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.run_directory import SandboxKind


class Settings(BaseSettings):
    """Everything a service is told from outside. The two URLs may hold passwords: never print them."""

    model_config = SettingsConfigDict(env_prefix="CEREBRAS_", frozen=True)

    database_url: SecretStr
    broker_url: SecretStr
    blob_folder: Path
    work_folder: Path
    api_key_file: Path
    user_python: Path = Path(sys.executable)
    sandbox: SandboxKind = SandboxKind.BUBBLEWRAP
    worker_name: str = "worker"
    allowed_hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")

    lease_seconds: PositiveFloat = 30.0
    """How long a stage stays a worker's without a word from it."""
    poll_seconds: PositiveFloat = 2.0
    """How often an idle worker looks into the database unasked."""
    pump_seconds: PositiveFloat = 0.25
    """How often logs and events of a running process are carried to the control plane."""
    grace_seconds: PositiveFloat = 10.0
    """What a user's process gets between SIGTERM and SIGKILL."""
    drain_seconds: PositiveFloat = 4.0
    """The same, when the worker itself is told to stop."""
    max_attempts: PositiveInt = 3
    max_bundle_bytes: PositiveInt = 2 << 30
    max_bundle_files: PositiveInt = 100_000


def read_settings() -> Settings:
    """The settings of this process; a `ReportedError` (config.invalid) names the variables that are wrong."""
    try:
        return Settings.model_validate({})
    except ValidationError as error:
        # Never the values: they may be passwords.
        wrong = ", ".join(f"CEREBRAS_{str(fault['loc'][0]).upper()} ({fault['type']})" for fault in error.errors())
        report = ErrorReport(
            code=ErrorCode.CONFIG_INVALID,
            message=f"these settings are missing or wrong: {wrong}",
            advice="`cerebras-cloud up` sets them; set them by hand only without it.",
        )
        raise ReportedError(report) from None
