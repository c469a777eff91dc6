"""Ends of a script that are no errors. They are BaseExceptions, so that `except Exception` does not swallow them."""


class CompilePhaseEnd(BaseException):
    """Phase compile ends inside `cerebras_pytorch.compile`: the artifact is written."""


class RunStopped(BaseException):
    """The run was asked to stop; the last finished step has its checkpoint."""
