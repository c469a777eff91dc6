"""Started as a file: `tether.py PARENT_PID COMMAND...` becomes COMMAND, which dies when its parent dies.

The sandbox `none` has nothing else that ends a user's process when its worker is killed.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the tie was made
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
