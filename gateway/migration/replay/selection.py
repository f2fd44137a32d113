"""Which recorded calls to use: `--where 'model=fraud and protocol=trtis.*'`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gateway.ir.context import ModelRef
from gateway.shadow.records.records import RecordedCall

KEYS: Final = ("model", "version", "protocol", "client", "agent", "route", "target", "code", "kind")
_TERM: Final = re.compile(r"\s*([a-z_]+)\s*(!?=)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions on recorded calls, all of which must hold.

    Attributes:
        terms: Key, pattern with `*` and `?`, and whether the key must match it.
    """

    terms: tuple[tuple[str, str, bool], ...] = ()

    def includes(self, record: RecordedCall) -> bool:
        """Return whether the call meets all conditions."""
        return all(
            fnmatchcase(getattr(record.call, key), pattern) == expected
            for key, pattern, expected in self.terms
        )


def parse_selection(text: str) -> Selection:
    """Parse `KEY=PATTERN and KEY!=PATTERN`.

    Raises:
        ValueError: A term has another form, or its key is unknown.
    """
    terms = []
    for part in re.split(r"\s+and\s+", text.strip()):
        found = _TERM.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is not KEY=PATTERN, such as protocol=trtis.*")
        if found[1] not in KEYS:
            raise ValueError(f"unknown key {found[1]!r}; expected one of {', '.join(KEYS)}")
        terms.append((found[1], found[3], found[2] == "="))
    return Selection(tuple(terms))


def parse_models(texts: list[str]) -> Mapping[str, ModelRef]:
    """Parse `OLD=NEW` or `OLD=NEW:VERSION`, the names of models at another server.

    Raises:
        ValueError: A text has another form.
    """
    models = {}
    for text in texts:
        old, equals, new = text.partition("=")
        name, _, version = new.partition(":")
        if not (old and equals and name):
            raise ValueError(f"{text!r} is not OLD=NEW or OLD=NEW:VERSION")
        models[old] = ModelRef(name, version)
    return models
