"""Readers of a protocol's options in YAML.

A reader checks one value and returns it typed.  The configuration's loader keeps every scalar as
the text that it is written in, so readers accept both the text and the value.
"""

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from gateway.ir.context import ModelRef

Reader = Callable[[str, Any], Any]
"""Reads the value of a key. Raises ValueError, which names the key."""


class OptionError(ValueError):
    """An option is wrong.

    Args:
        text: What is wrong.
        path: The keys that lead to the option, from what was checked.
    """

    def __init__(self, text: str, path: tuple[str, ...]) -> None:
        super().__init__(text)
        self.text = text
        self.path = path


_FLAGS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile("[0-9]{1,10}")


def read_values(
    owner: str, readers: Mapping[str, Reader], options: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """Return *options* with each value as its reader returns it.

    Args:
        owner: The protocol or option that *options* belong to, for errors.
        readers: One for each key that exists.
        options: From YAML.
        prefix: Stands before each key in errors.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    for key in options:
        if key not in readers:
            raise ValueError(f"{owner} has no option {key!r}: expected one of {', '.join(readers)}")
    return {key: readers[key](f"{prefix}{key}", value) for key, value in options.items()}


def read_section(
    owner: str,
    readers: Mapping[str, Reader],
    section: Mapping[str, Any],
    path: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return *section* with each value as its reader returns it.

    Args:
        owner: The protocol or section, for errors.
        readers: One for each key that exists.
        section: From YAML.
        path: The keys that lead to the section.

    Raises:
        OptionError: A key does not exist, or a value is wrong; its path has the key.
    """
    found = {}
    for key, value in section.items():
        if key not in readers:
            expected = ", ".join(readers)
            raise OptionError(
                f"{owner} has no key {key!r}: expected one of {expected}", (*path, key)
            )
        try:
            found[key] = readers[key](key, value)
        except OptionError:  # of a section within this one
            raise
        except ValueError as error:
            raise OptionError(str(error), (*path, key)) from error
    return found


def wrong(key: str, value: Any, expected: str) -> ValueError:
    """Return the error for a value that is not *expected*."""
    return ValueError(f"{key} is {value!r}: expected {expected}")


def text(key: str, value: Any) -> str:
    """Read text."""
    if not isinstance(value, str):
        raise wrong(key, value, "text")
    return value


def flag(key: str, value: Any) -> bool:
    """Read true or false."""
    found = _FLAGS.get(value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise wrong(key, value, "true or false")
    return found


def number(least: int, most: int) -> Reader:
    """Return a reader of whole numbers from *least*, which is not negative, to *most*."""

    def read(key: str, value: Any) -> int:
        found = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if type(found) is not int or not least <= found <= most:
            raise wrong(key, value, f"a number from {least} to {most}")
        return found

    return read


def one_of(*values: str | int) -> Reader:
    """Return a reader of the values listed."""
    by_text = {str(value): value for value in values}
    expected = f"one of {', '.join(by_text)}"
    if "off" in by_text:  # of which YAML 1.1, as Helm reads it, makes `false`
        by_text["false"] = "off"

    def read(key: str, value: Any) -> str | int:
        found = by_text.get(str(value))
        if found is None:
            raise wrong(key, value, expected)
        return found

    return read


def member_of(kind: type[Enum]) -> Reader:
    """Return a reader of the values of an enumeration."""

    def read(key: str, value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError:
            names = ", ".join([str(member.value) for member in kind])
            raise wrong(key, value, f"one of {names}") from None

    return read


def matching(pattern: re.Pattern[str], expected: str) -> Reader:
    """Return a reader of text that matches *pattern*."""

    def read(key: str, value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise wrong(key, value, expected)
        return value

    return read


def model(key: str, value: Any) -> ModelRef:
    """Read "name" or "name/version"."""
    name, _, version = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not name:
        raise wrong(key, value, "a model's name, or name/version")
    return ModelRef(name, version)


def optional(reader: Reader) -> Reader:
    """Return a reader that also accepts null."""
    return lambda key, value: None if value is None else reader(key, value)


def list_of(reader: Reader) -> Reader:
    """Return a reader of lists, which returns a tuple."""

    def read(key: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise wrong(key, value, "a list")
        return tuple([reader(f"{key}[{at}]", entry) for at, entry in enumerate(value)])

    return read


def mapping_of(reader: Reader) -> Reader:
    """Return a reader of mappings from names of any kind."""

    def read(key: str, value: Any) -> dict[str, Any]:
        return {name: reader(f"{key}.{name}", entry) for name, entry in mapping(key, value).items()}

    return read


def mapping(key: str, value: Any) -> Mapping[str, Any]:
    """Read a mapping from text, whatever its values are."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise wrong(key, value, "a mapping")
    return value
