"""What is particular to compile: an artifact that exists is not made again, a new one is kept."""

from typing_extensions import override

from cerebras_contract.errors import ErrorCode, ErrorReport, ReportedError
from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.states import StageKind
from cerebras_controlplane.artifacts.repository import find_compiled, register
from cerebras_controlplane.db import writing
from cerebras_controlplane.jobs import finish
from cerebras_controlplane.jobs.claim import Claim, hold
from cerebras_controlplane.worker.left_files import LeftFilesError
from cerebras_controlplane.worker.outputs import keep_artifact
from cerebras_controlplane.worker.tools import StageHandler, Tools


class CompileHandler(StageHandler):
    """The compile stage."""

    kind = StageKind.COMPILE

    @override
    def settle(self, tools: Tools, claim: Claim) -> bool:
        """Skip the stage if its artifact was compiled before, perhaps while it waited."""
        with writing(tools.sessions) as session:
            artifact_key = find_compiled(session, claim.source_key, tools.user_python.made_with.for_job(claim.spec))
            if artifact_key is not None:
                finish.skip(session, hold(session, claim), artifact_key)
        return artifact_key is not None

    @override
    def prepare(self, tools: Tools, claim: Claim, directory: RunDirectory) -> None:
        """Nothing: the user's process makes `compile/` itself."""

    @override
    def complete(self, tools: Tools, claim: Claim, directory: RunDirectory) -> None:
        """Keep the artifact, for this job and for all with the same input key."""
        try:
            kept = keep_artifact(tools.blobs, directory)
        except LeftFilesError as error:
            raise ReportedError(
                ErrorReport(
                    code=ErrorCode.COMPILER_BUG,
                    message=f"compile succeeded but left no whole artifact: {error}",
                    advice="Run the script locally and look into `compile/`; the script should not write there.",
                )
            ) from None
        with writing(tools.sessions) as session:
            stage = hold(session, claim)
            made_with = tools.user_python.made_with.for_job(claim.spec)
            register(session, claim.source_key, made_with, kept.artifact_key, kept.files)
            stage.job.artifact_key = kept.artifact_key
