"""What is particular to execute: artifact and checkpoint are laid into the run directory."""

from typing_extensions import override

from cerebras_contract.run_directory import RunDirectory
from cerebras_contract.states import StageKind
from cerebras_controlplane.artifacts.materialize import materialize
from cerebras_controlplane.jobs.claim import Claim
from cerebras_controlplane.worker.resuming import lay_checkpoint, lay_summary
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
        """Copy the artifact to `compile/`, read-only, the checkpoint to go on from to `checkpoints/`,
        and the summary of the attempts before."""
        materialize(tools.sessions, tools.blobs, claim.job_id, directory.compile)
        lay_checkpoint(tools, claim, directory)
        lay_summary(tools, claim, directory)

    @override
    def complete(self, tools: Tools, claim: Claim, directory: RunDirectory) -> None:
        """Nothing: checkpoints were kept while the process ran."""
