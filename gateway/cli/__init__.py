"""The command `gateway`: arguments in, exit status out; the work is done elsewhere.

Exit status: 0 done, 1 failed or the answer is no, 2 the command or its configuration is wrong.
Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import sys

from gateway import __version__


def main() -> None:
    """Run the command line and exit with its status."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"gateway {__version__}\n")
        return
    from gateway.cli.commands import run  # noqa: PLC0415  # not worth its time for --version

    sys.exit(run(sys.argv[1:]))
