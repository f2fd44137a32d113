"""Runs Seldon's microservice, and ends its processes with it: SIGTERM ends only the first one."""

import os
import signal
import subprocess
import sys


def end(_number: int, _frame: object) -> None:
    """End all processes of the group."""
    os.killpg(0, signal.SIGKILL)


os.setsid()
signal.signal(signal.SIGTERM, end)
sys.exit(subprocess.call(sys.argv[1:]))
