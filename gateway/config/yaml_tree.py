"""YAML text -> plain values with the place of each, read in a safe subset.

Every scalar stays text: what type it has is the schema's business, so `no` is not a boolean and
`1.10` not a number until something asks for one. Duplicate keys, tags, and bombs of aliases,
depth or size are refused. `${env:NAME}`, `${env:NAME:-default}` and `${file:PATH}` are resolved
here, after parsing, so that a secret cannot bring YAML of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Place = tuple[int, int]
"""Line and column, both from 1."""

KeyPath = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_ALIASES = 100
MAX_VALUES = 100_000

_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_PREFIX = "tag:yaml.org,2002:"
_MERGE = _PREFIX + "merge"
# What plain text, lists and mappings resolve to without a tag being written.
_TAGS = {
    _PREFIX + kind
    for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "seq", "map")
}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration file."""

    place: Place
    path: str
    message: str

    def __str__(self) -> str:
        at = f"{self.path}: " if self.path else ""
        return f"{self.place[0]}:{self.place[1]}: {at}{self.message}"


@dataclass(slots=True)
class Tree:
    """Values of a file, the places of keys and values, and what was wrong on the way."""

    value: Any = None
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    values: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    references: dict[KeyPath, str] = field(default_factory=dict)
    """Text as written, of values that hold `${...}`: what it stands for may be a secret."""

    def place(self, path: KeyPath, *, of_key: bool = False) -> Place:
        """Return where *path* stands, or the nearest of its parents that does."""
        first = self.keys if of_key else self.values
        while path:
            found = first.get(path) or self.values.get(path)
            if found is not None:
                return found
            path = path[:-1]
        return self.values.get((), (1, 1))


def path_text(path: KeyPath) -> str:
    """Return a path as people write it: routes[2].upstream."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_tree(text: str, environment: Mapping[str, str], directory: Path) -> Tree:
    """Read YAML *text*; what is wrong is listed in the tree, never raised.

    Args:
        text: The file's text.
        environment: For `${env:}`.
        directory: What `${file:}` paths are relative to.
    """
    tree = Tree()
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        tree.problems.append(Problem((1, 1), "", f"the file is larger than {MAX_BYTES} bytes"))
        return tree
    try:
        _refuse_bombs(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            tree.problems.append(Problem((1, 1), "", "the file is empty"))
        else:
            _Reader(tree, environment, directory).read(node, ())
    except _BombError as error:
        tree.problems.append(Problem(error.place, "", error.message))
    except yaml.MarkedYAMLError as error:
        tree.problems.append(_not_yaml(error))
    except yaml.YAMLError as error:
        tree.problems.append(Problem((1, 1), "", f"not YAML: {str(error).splitlines()[0]}"))
    return tree


def _not_yaml(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = (1, 1) if mark is None else _place(mark)
    said = [part for part in (error.context, error.problem) if part]
    return Problem(place, "", f"not YAML: {', '.join(said)}")


def _place(mark: Any) -> Place:
    return mark.line + 1, mark.column + 1


class _BombError(Exception):
    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message


def _refuse_bombs(text: str) -> None:
    """Walk the events, which cost no recursion, and refuse what composing could not bear."""
    depth = aliases = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.events.AliasEvent):
            aliases += 1
        if depth > MAX_DEPTH or aliases > MAX_ALIASES:
            too = f"deeper than {MAX_DEPTH}" if depth > MAX_DEPTH else f"over {MAX_ALIASES} aliases"
            raise _BombError(_place(event.start_mark), too)


class _Reader:
    def __init__(self, tree: Tree, environment: Mapping[str, str], directory: Path) -> None:
        self._tree = tree
        self._environment = environment
        self._directory = directory
        # An alias in an alias in an alias ... repeats its nodes: count them, not the lines.
        self._left = MAX_VALUES

    def read(self, node: yaml.Node, path: KeyPath) -> None:
        self._tree.value = self._value(node, path)

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._left -= 1
        if self._left < 0:
            message = f"aliases expand to more than {MAX_VALUES} values"
            raise _BombError(_place(node.start_mark), message)
        # The text is not this deep, so an alias is: one inside another, or inside itself.
        if len(path) > MAX_DEPTH:
            raise _BombError(_place(node.start_mark), f"aliases expand deeper than {MAX_DEPTH}")
        self._tree.values[path] = _place(node.start_mark)
        if node.tag not in _TAGS:
            self._problem(node, path, f"tag {node.tag!r} is not allowed")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str):
                self._problem(key_node, path, "a key must be plain text")
                continue
            below = (*path, key)
            if key_node.tag == _MERGE:
                self._problem(key_node, path, "merging with << is not supported: repeat the keys")
                continue
            if key in result:
                first = self._tree.keys[below]
                self._problem(
                    key_node, below, f"key {key!r} is here a second time, first on line {first[0]}"
                )
                continue
            self._tree.keys[below] = _place(key_node.start_mark)
            result[key] = self._value(value_node, below)
        return result

    def _scalar(self, node: yaml.Node, path: KeyPath) -> str | None:
        text: str = node.value
        if getattr(node, "style", None) is None and text in _NULLS:
            return None
        if _REFERENCE.search(text):
            self._tree.references[path] = text
        return _REFERENCE.sub(lambda found: self._resolve(found, node, path), text)

    def _resolve(self, found: re.Match[str], node: yaml.Node, path: KeyPath) -> str:
        kind, name = found.groups()
        if kind == "env":
            name, _, default = name.partition(":-")
            value = self._environment.get(name)
            if ":-" in found[2]:
                value = value or default
            if value is None:
                self._problem(node, path, f"environment variable {name!r} is not set")
                return ""
            return value
        file = self._directory / Path(name).expanduser()
        try:
            return file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            self._problem(node, path, f"cannot read {str(file)!r}: {reason}")
            return ""

    def _problem(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self._tree.problems.append(Problem(_place(node.start_mark), path_text(path), message))
