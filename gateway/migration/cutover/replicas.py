"""What gateways of one cut-over tell each other in a directory that they share.

Each gateway writes a file about itself every second, and the one that leads reads them all.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from gateway.settings.private_files import replace_private

# A gateway that has written nothing for this time is gone.
_GONE_S: Final = 15.0
# Its file is removed later, in case clocks differ.
_FORGOTTEN_S: Final = 3600.0


def own_name() -> str:
    """Return the name of this gateway among the others: its host and process."""
    return f"{socket.gethostname()}-{os.getpid()}"


class Replicas:
    """The gateways of one cut-over.

    Args:
        directory: The directory that they share.
        migration: The name of the migration.
        name: The name of this gateway.
        clock: Seconds since the epoch; the clocks of all machines must agree by seconds.
    """

    def __init__(
        self,
        directory: Path,
        migration: str,
        name: str,
        clock: Callable[[], float] = time.time,  # noqa: TID251  # other machines read it
    ) -> None:
        self._directory = directory / f"{quote(migration, safe=' ')}.replicas"
        self._path = self._directory / f"{quote(name, safe=' ')}.json"
        self._clock = clock

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace what the others read of this gateway.

        Raises:
            OSError: It cannot be written.
        """
        replace_private(self._path, orjson.dumps({**document, "at_s": self._clock()}))

    def others(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and document of each other gateway that has written lately."""
        if not self._directory.is_dir():
            return
        now = self._clock()
        for path in sorted(self._directory.glob("*.json")):
            if path == self._path:
                continue
            try:
                document = orjson.loads(path.read_bytes())
                age_s = abs(now - document["at_s"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # its gateway has just ended, or the file is not one of a gateway
            if age_s < _GONE_S:
                yield path.stem, document
            elif age_s > _FORGOTTEN_S:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the file of this gateway; idempotent."""
        self._path.unlink(missing_ok=True)
