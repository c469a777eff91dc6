"""`python -m cerebras_wafer`, the same as `cerebras-wafer`."""

import sys

from cerebras_wafer.cli import main

if __name__ == "__main__":
    sys.exit(main())
