"""YAML text -> plain values, each with its position in the file.

It reads a safe subset of YAML. Every scalar stays text, and the schema decides its type: `no` is
not a boolean and `1.10` is not a number here. Duplicate keys and tags are problems, and so are
files that expand too far by their size, depth or aliases. `${env:NAME}`, `${env:NAME:-DEFAULT}`
and `${file:PATH}` are replaced after the YAML is parsed, so their content cannot add keys.
"""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

Position = tuple[int, int]
"""Line and column, both from 1."""

KeyPath = tuple[str | int, ...]
"""Keys and list indexes from the top of the file to a value."""

Finding = tuple[KeyPath, str]
"""The key of a wrong value, and the error text."""

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_ALIASES = 100
MAX_VALUES = 100_000

_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_LITERAL = re.compile(r"\$\{(?!env:|file:)[^}]*\}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*(?::?-[^}]*)?)\}")
_PREFIX = "tag:yaml.org,2002:"
_MERGE = _PREFIX + "merge"
# The tags of plain text, lists and mappings when the file writes no tag.
_TAGS = {
    _PREFIX + kind
    for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "seq", "map")
}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


NOWHERE: Final[Position] = (0, 0)
"""The position of a problem that is not in the file."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a configuration file.

    Attributes:
        position: `NOWHERE` for what is wrong whatever the file has.
        path: Key as in `routes[2].upstream`; "" for the file as a whole.
    """

    position: Position
    path: str
    message: str

    def entry(self) -> dict[str, str | int]:
        """Return the problem as a JSON object."""
        line, column = self.position
        return {"line": line, "column": column, "path": self.path, "message": self.message}

    def __str__(self) -> str:
        if self.position == NOWHERE:
            return f" {self.message}"
        key = f"{self.path}: " if self.path else ""
        return f"{self.position[0]}:{self.position[1]}: {key}{self.message}"


@dataclass(slots=True)
class YamlTree:
    """Values of a file, the positions of its keys and values, and its problems.

    Attributes:
        references: The original text of values that contain `${...}`. Errors show it, because the
            replaced value may be a secret.
        literals: Parts of values that look like `${...}`, and are no reference.
    """

    value: Any = None
    keys: dict[KeyPath, Position] = field(default_factory=dict)
    values: dict[KeyPath, Position] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    references: dict[KeyPath, str] = field(default_factory=dict)
    literals: dict[KeyPath, str] = field(default_factory=dict)

    def position(self, path: KeyPath, *, of_key: bool = False) -> Position:
        """Return the position of *path*, or of its nearest parent in the file."""
        first = self.keys if of_key else self.values
        while path:
            found = first.get(path) or self.values.get(path)
            if found is not None:
                return found
            path = path[:-1]
        return self.values.get((), (1, 1))


def path_text(path: KeyPath) -> str:
    """Return a path as text: `routes[2].upstream`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def reference_hint(text: str) -> str:
    """Return what to write in place of *text*, which looks like a reference, and is none."""
    found = _VARIABLE.fullmatch(text)
    if found is None:
        return "expected ${env:NAME}, ${env:NAME:-DEFAULT} or ${file:PATH}"
    name, dash, default = found[1].partition("-")
    name = name.removesuffix(":")
    return f"an environment variable is ${{env:{name}{':-' + default if dash else ''}}}"


def read_tree(text: str, environment: Mapping[str, str], directory: Path) -> YamlTree:
    """Parse YAML *text*. Errors are listed in the tree; nothing is raised.

    Args:
        text: Content of the file.
        environment: Variables of `${env:NAME}`.
        directory: Folder that paths of `${file:PATH}` are relative to.
    """
    tree = YamlTree()
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_BYTES:
        message = f"the file has {size} bytes; at most {MAX_BYTES} are allowed"
        tree.problems.append(Problem((1, 1), "", message))
        return tree
    try:
        node = _Composer(_checked_events(text)).get_single_node()
        if node is None:
            tree.problems.append(Problem((1, 1), "", "the file is empty"))
        else:
            _YamlReader(tree, environment, directory).read(node, ())
    except _LimitError as error:
        tree.problems.append(Problem(error.position, "", error.message))
    except yaml.MarkedYAMLError as error:
        tree.problems.append(_syntax_problem(error))
    except yaml.YAMLError as error:
        tree.problems.append(Problem((1, 1), "", f"not YAML: {str(error).splitlines()[0]}"))
    return tree


def resolve_references(text: str, environment: Mapping[str, str], directory: Path) -> str:
    """Return *text* with what its `${...}` stand for now.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is not UTF-8.
    """

    def value(found: re.Match[str]) -> str:
        kind, name = found.groups()
        if kind == "env":
            name, _, default = name.partition(":-")
            return environment.get(name) or default
        return read_reference(directory, name)

    return _REFERENCE.sub(value, text)


def read_reference(directory: Path, name: str) -> str:
    """Return the content of a file of `${file:PATH}`, without a byte order mark and last line ends.

    Raises OSError, ValueError.
    """
    file = directory / Path(name).expanduser()
    return file.read_text(encoding="utf-8-sig").rstrip("\r\n")


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    position = (1, 1) if mark is None else _position(mark)
    if r"'\t'" in (error.problem or ""):
        return Problem(position, "", "not YAML: a tab indents this line; expected spaces")
    parts = [part for part in (error.context, error.problem) if part]
    return Problem(position, "", f"not YAML: {', '.join(parts)}")


def _position(mark: Any) -> Position:
    return mark.line + 1, mark.column + 1


class _LimitError(Exception):
    def __init__(self, position: Position, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


def _checked_events(text: str) -> deque[yaml.Event]:
    """Check depth and aliases with the event parser, which does not recurse as composing does.

    Raises:
        _LimitError: A limit is exceeded.
    """
    depth = aliases = 0
    found: deque[yaml.Event] = deque()
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.events.AliasEvent):
            aliases += 1
        if depth > MAX_DEPTH:
            message = f"nested too deeply: at most {MAX_DEPTH} levels are allowed"
            raise _LimitError(_position(event.start_mark), message)
        if aliases > MAX_ALIASES:
            message = f"too many aliases: at most {MAX_ALIASES} are allowed"
            raise _LimitError(_position(event.start_mark), message)
        found.append(event)
    return found


class _Composer(yaml.composer.Composer, yaml.resolver.Resolver):
    """Composes nodes of events that are parsed already."""

    def __init__(self, events: deque[yaml.Event]) -> None:
        yaml.composer.Composer.__init__(self)
        yaml.resolver.Resolver.__init__(self)
        self._events = events

    def check_event(self, *choices: type[yaml.Event]) -> bool:
        return isinstance(self._events[0], choices)

    def peek_event(self) -> yaml.Event:
        return self._events[0]

    def get_event(self) -> yaml.Event:
        return self._events.popleft()


class _YamlReader:
    def __init__(self, tree: YamlTree, environment: Mapping[str, str], directory: Path) -> None:
        self._tree = tree
        self._environment = environment
        self._directory = directory
        # An alias of an alias repeats its nodes, so expanded values are counted, not lines.
        self._values_left = MAX_VALUES

    def read(self, node: yaml.Node, path: KeyPath) -> None:
        self._tree.value = self._value(node, path)

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._values_left -= 1
        if self._values_left < 0:
            message = f"aliases expand to too many values: at most {MAX_VALUES} are allowed"
            raise _LimitError(_position(node.start_mark), message)
        # The text is not this deep, so the cause is an alias in another alias or in itself.
        if len(path) > MAX_DEPTH:
            message = f"aliases are nested too deeply: at most {MAX_DEPTH} levels are allowed"
            raise _LimitError(_position(node.start_mark), message)
        self._tree.values[path] = _position(node.start_mark)
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
                self._problem(key_node, path, "a key must be text, not a list or a mapping")
                continue
            below = (*path, key)
            if key_node.tag == _MERGE:
                self._problem(key_node, path, "merge keys (<<) are not supported: repeat the keys")
                continue
            if key in result:
                line = self._tree.keys[below][0]
                self._problem(key_node, below, f"duplicate key {key!r}: first used on line {line}")
                continue
            self._tree.keys[below] = _position(key_node.start_mark)
            result[key] = self._value(value_node, below)
        return result

    def _scalar(self, node: yaml.Node, path: KeyPath) -> str | None:
        text: str = node.value
        if getattr(node, "style", None) is None and text in _NULLS:
            return None
        literal = _LITERAL.search(text)
        if literal is not None:
            self._tree.literals[path] = literal[0]
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
                message = (
                    f"environment variable {name!r} is not set: set it, or write "
                    f"${{env:{name}:-DEFAULT}}"
                )
                self._problem(node, path, message)
                return ""
            return value
        try:
            return read_reference(self._directory, name)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            file = str(self._directory / Path(name).expanduser())
            self._problem(node, path, f"cannot read {file!r}: {reason}")
            return ""

    def _problem(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self._tree.problems.append(Problem(_position(node.start_mark), path_text(path), message))
