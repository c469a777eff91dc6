"""`python -m cerebras_controlplane migrate`: brings the database up to date, then exits."""

import argparse
import sys

from cerebras_contract.errors import ReportedError
from cerebras_controlplane.migrations.run import migrate
from cerebras_controlplane.settings import read_settings


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="cerebras_controlplane", description=__doc__)
    parser.add_argument("command", choices=["migrate"])
    parser.parse_args()
    try:
        migrate(read_settings().database_url.get_secret_value())
    except ReportedError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
