"""Which keys of the configuration came with which release, for `gateway validate --for VERSION`."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final

ADDED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"0.1.0": ()})
"""The releases, and the keys that each added, such as `upstreams.*.residency`; oldest first."""


def later_keys(
    document: Any, version: str, added: Mapping[str, tuple[str, ...]] = ADDED
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the paths of keys that *version* does not know, with the release that added each.

    Args:
        document: The configuration as plain values.
        version: One of the releases.
        added: The keys that each release added.

    Raises:
        ValueError: There is no such release.
    """
    check_release(version, added)
    releases = list(added)
    for later in releases[releases.index(version) + 1 :]:
        for path in _paths(document):
            name = ".".join(str(part) for part in path)
            # A star is one name: it matches no key below it.
            if any(
                fnmatchcase(name, key) and name.count(".") == key.count(".") for key in added[later]
            ):
                yield path, later


def check_release(version: str, added: Mapping[str, tuple[str, ...]] = ADDED) -> None:
    """Raise ValueError if there is no such release."""
    if version not in added:
        raise ValueError(f"version is {version!r}; expected one of {', '.join(added)}")


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))
