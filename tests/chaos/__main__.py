"""Run chaos: `python -m tests.chaos --seconds 600 --seed 7`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
import tempfile
from pathlib import Path

import structlog

from tests.chaos.run import Chaos


def main() -> None:
    """Run once, print the seed first and the summary last; exit 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long faults go on")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"seed {arguments.seed}, {arguments.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(arguments.seed, arguments.seconds, Path(folder))
        summary = asyncio.run(chaos.run())
    print(summary)
    sys.exit(bool(summary.wrong))


if __name__ == "__main__":
    main()
