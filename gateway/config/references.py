"""The names in a configuration file that another part of it defines, found by `NameOf`."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from pydantic.fields import FieldInfo

from gateway.config.yaml_tree import KeyPath
from gateway.settings.fields import NameKind, NameOf
from gateway.settings.model import Model


class Reference(NamedTuple):
    """A name, or a pattern of names, and what has such a name.

    Attributes:
        path: Its key.
        kind: What has such a name.
        name: The name or pattern.
        values: Of a mapping, the patterns of its value.
    """

    path: KeyPath
    kind: NameKind
    name: str
    values: tuple[str, ...] = ()


def references(section: Model, path: KeyPath = ()) -> Iterator[Reference]:
    """Yield the names in a section of the file, in the order of its keys."""
    for key, field in type(section).model_fields.items():
        if key not in section.model_fields_set:
            continue
        value, at, marker = getattr(section, key), (*path, key), marker_of(field)
        if marker is None:
            yield from _below(value, at)
        elif isinstance(value, Mapping):
            for name, values in value.items():
                yield Reference((*at, name), marker.kind, name, values)
        else:
            # One value may stand for a list of it.
            for index, name in enumerate((value,) if isinstance(value, str) else value or ()):
                if name.startswith(marker.prefix):
                    found = name.removeprefix(marker.prefix)
                    yield Reference((*at, index), marker.kind, found)


def marker_of(field: FieldInfo) -> NameOf | None:
    """Return what the names of a key refer to; None if they are no names of others."""
    found = [*field.metadata, *_metadata(field.annotation)]
    return next((each for each in found if isinstance(each, NameOf)), None)


def _metadata(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for inner in get_args(annotation):
        yield from _metadata(inner)


def _below(value: Any, path: KeyPath) -> Iterator[Reference]:
    """Yield the names in the sections that a key has."""
    if isinstance(value, Model):
        yield from references(value, path)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _below(each, (*path, name))
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _below(each, (*path, index))
