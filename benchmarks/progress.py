"""What a benchmark says while it runs."""

import sys
from collections.abc import Callable

Say = Callable[[str], None]
"""Reports progress to whoever waits for the results."""


def say(text: str) -> None:
    """Write *text* to stderr at once: stdout has the results."""
    print(text, file=sys.stderr, flush=True)
