"""The one error of the embedded cluster."""


class ClusterError(Exception):
    """The cluster cannot be started or has ended; the text is for people."""
