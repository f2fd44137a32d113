"""A sink of events: a line of JSON for each, appended to the file of its URL."""

import json
from pathlib import Path
from typing import Any


class Lines:
    def __init__(self, url: str) -> None:
        self._path = Path(url.removeprefix("lines://"))

    async def send(self, events: Any, /) -> None:
        with self._path.open("a") as file:
            file.writelines(json.dumps([each.name, each.fields]) + "\n" for each in events)
