"""The command `gateway`. Read `commands.py` first, then the module of one command.

Exit status: 0 success, 1 failure or negative result, 2 usage or configuration error. Data goes to
standard output, and errors and notes to standard error.
"""

import sys

from gateway import __version__
from gateway.accelerator import BUILD


def main() -> None:
    """Run the command line and exit with its status."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"gateway {__version__} ({BUILD})\n")
        return
    from gateway.cli.commands import run  # noqa: PLC0415  # slow to import

    sys.exit(run(sys.argv[1:]))
