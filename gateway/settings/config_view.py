"""ConfigView: the configuration file as packages see it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gateway.settings.setting import Setting

T = TypeVar("T")

Finding = tuple[tuple[str | int, ...], str]
"""A path of keys in the configuration file, and what is wrong there."""


class ConfigView(Protocol):
    """A configuration file that matches the schema."""

    @property
    def directory(self) -> Path:
        """The folder that paths in the file are relative to."""

    def setting(self, setting: Setting[T], /) -> T:
        """Return the value of a top-level key."""

    def values(self, setting: Setting[T], /) -> Iterator[tuple[tuple[str | int, ...], T]]:
        """Yield each value in the file, with the path of its key."""

    def changed(self, **fields: Any) -> "ConfigView":
        """Return a copy with other values of top-level keys."""
