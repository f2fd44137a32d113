"""Hints at the key that an unknown key of the configuration file was meant to be."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_args, get_origin

from gateway.config.retired import RETIRED
from gateway.settings.model import Model

_NEAR: Final = 0.7
_MAX_PLACES: Final = 8
_MAX_SHOWN: Final = 3


def key_hint(root: type[Model], loc: tuple[str | int, ...]) -> str:
    """Return a hint at the key that was probably meant; "" without an idea.

    It is the nearest key of the same section, or another section that has a key of this name.

    Args:
        root: The type of the whole file.
        loc: The keys and indexes of the unknown key.
    """
    section, own, name = root, "", str(loc[-1])
    for part in loc[:-1]:
        field = section.model_fields.get(str(part))
        if field is not None:
            section, suffix = next(iter(_sections(field.annotation)), (section, ""))
            own = f"{own}.{part}{suffix}".lstrip(".")
    known = [key for key in section.model_fields if f"{own}.{key}" not in RETIRED]
    near = get_close_matches(name, known, 1, _NEAR)
    if near:
        return f"; did you mean {near[0]!r}?"
    places = list(_places(root, name, "", ()))
    inner = [place for place in places if own and place.startswith(f"{own}.")]
    others = [place for place in places if place not in inner]
    nearest = min((place.count(".") for place in inner), default=0)
    inner = [place for place in inner if place.count(".") == nearest]
    if len(others) > _MAX_PLACES:
        others = []  # many sections have a key of this name
    others.sort(key=lambda place: place.count("."))
    places = (inner + others)[:_MAX_SHOWN]
    if not places:
        return ""
    first = f"{', '.join(places[:-1])} or " if len(places) > 1 else ""
    return f"; it belongs to {first}{places[-1]}"


def _places(
    section: type[Model], name: str, path: str, above: tuple[type[Model], ...]
) -> Iterator[str]:
    """Yield the sections below *section* that have the key *name*, as they stand in the file."""
    for key, field in section.model_fields.items():
        for below, suffix in _sections(field.annotation):
            if below in above:
                continue
            where = f"{path}.{key}{suffix}" if path else f"{key}{suffix}"
            if name in below.model_fields and f"{where}.{name}" not in RETIRED:
                yield where
            yield from _places(below, name, where, (*above, below))


def _sections(annotation: Any, suffix: str = "") -> Iterator[tuple[type[Model], str]]:
    """Yield the sections that a key of this type has as values, and how their paths go on."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation, suffix
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        suffix += ".NAME"
    elif origin is tuple:
        suffix += "[]"
    for inner in get_args(annotation):
        yield from _sections(inner, suffix)
