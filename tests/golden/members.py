"""The members that a real server always sends: those of all its recorded replies of one kind."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

Members: TypeAlias = frozenset[tuple[str, ...]]

_NAMES = re.compile(r"/(?:versions|labels)/[^/:]+|(?<=/models/)[^/:]+|(?<=/predictions/)[^/:]+")


def members(value: Any, place: tuple[str, ...] = ()) -> Members:
    """Return the places of all members; those in a list that all its elements have."""
    if isinstance(value, dict):
        inner = [members(each, (*place, name)) for name, each in value.items()]
        return frozenset((*place, name) for name in value).union(*inner)
    if isinstance(value, list) and value:
        return reduce(frozenset.__and__, [members(each, (*place, "[]")) for each in value])
    return frozenset()


class AlwaysSent:
    """What all recorded replies of each kind have: the same path, status and content type.

    Args:
        folder: Of the recordings, for the entries of its index.
        entries: The recordings.
        own: Names of members that the authors of the recorded models add.
    """

    def __init__(
        self, folder: Path, entries: Iterable[Mapping[str, Any]], own: frozenset[str] = frozenset()
    ) -> None:
        found: dict[tuple[str, int], list[Members]] = defaultdict(list)
        for entry in entries:
            body = (folder / entry["response"]["file"]).read_bytes().partition(b"\r\n\r\n")[2]
            document = _json(body)
            if isinstance(document, dict | list):
                found[_kind(entry)].append(members(document))
        self._always = {kind: reduce(frozenset.__and__, each) for kind, each in found.items()}
        self._own = own

    def missing(self, entry: Mapping[str, Any], status: int, body: bytes) -> list[str]:
        """Return what a reply lacks of all that the server always sends with this status."""
        if status != entry["status"]:
            return []
        expected = self._always.get(_kind(entry), frozenset())
        lacking = expected - members(_json(body))
        return sorted(".".join(place) for place in lacking if not self._own.intersection(place))


def _kind(entry: Mapping[str, Any]) -> tuple[str, int]:
    method, target, _ = entry["request_line"].split(" ")
    return f"{method} {_NAMES.sub('', target.partition('?')[0])}", entry["status"]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
