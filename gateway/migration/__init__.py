"""The migration kit: records, compares and moves calls, replays and reports them.

The gateway finds it by `EXTENSION`, and imports nothing else of it.
"""

from gateway.migration.extension import EXTENSION

__all__ = ["EXTENSION"]
