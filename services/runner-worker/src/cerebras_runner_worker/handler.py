"""What is particular to execute: the artifact is laid, read-only, into the run directory."""

from typing_extensions import override

from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.states import StageKind
from cerebras_controlplane.artifacts.materialize import materialize
from cerebras_controlplane.jobs.claim import Claim
from cerebras_controlplane.worker.tools import StageHandler, Tools


class ExecuteHandler(StageHandler):
    """The execute stage."""

    kind = StageKind.EXECUTE

    @override
    def settle(self, tools: Tools, claim: Claim) -> bool:
        """Never: there is always something to execute."""
        return False

    @override
    def prepare(self, tools: Tools, claim: Claim, directory: RunDirectory) -> None:
        """Copy the artifact's files to `compile/`."""
        materialize(tools.sessions, tools.blobs, claim.job_id, directory.compile)

    @override
    def complete(self, tools: Tools, claim: Claim, directory: RunDirectory) -> None:
        """Nothing: checkpoints were kept while the process ran."""
