"""Configuration text -> `Config`. All errors of a file are reported at once, with positions."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.extended import config_type
from gateway.config.key_hints import key_hint
from gateway.config.models import Config
from gateway.config.retired import retired_keys
from gateway.config.yaml_tree import (
    NOWHERE,
    KeyPath,
    Problem,
    YamlTree,
    path_text,
    read_tree,
    reference_hint,
)
from gateway.registry import package_faults
from gateway.settings.fields import FORMS
from gateway.settings.model import Model
from gateway.settings.setting import Place, Setting

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration with errors.

    Attributes:
        problems: All errors, in the order of the file.
    """

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = sorted(problems, key=lambda problem: problem.position)
        super().__init__("\n".join(f"{source}:{problem}" for problem in self.problems))


class LoadedConfig:
    """A configuration with the positions of its keys, for checks that the schema cannot make.

    Attributes:
        source: Name of the file, for errors.
        directory: Folder that paths in the configuration are relative to.
        sha256: Hash of the text, as `sha256sum` prints it.
    """

    def __init__(
        self, config: Config, tree: YamlTree, source: str, directory: Path, sha256: str
    ) -> None:
        self.config = config
        self.source = source
        self.directory = directory
        self.sha256 = sha256
        self._tree = tree

    @classmethod
    def of(cls, config: object) -> LoadedConfig:
        """Return *config*, which an extension of the project itself knows as what it is."""
        assert isinstance(config, cls)  # noqa: S101  # the gateway has no other one
        return config

    def changed(self, **fields: Any) -> LoadedConfig:
        """Return a copy with other values of top-level keys."""
        config = self.config.model_copy(update=fields)
        return LoadedConfig(config, self._tree, self.source, self.directory, self.sha256)

    def setting(self, setting: Setting[T], /) -> T:
        """Return the value of a top-level key that an extension owns."""
        return setting.of(self.config)

    def values(self, setting: Setting[T], /) -> Iterator[tuple[KeyPath, T]]:
        """Yield each value in the file, with the path of its key."""
        for place, path, section in _sections(self.config):
            if place in setting.places and setting.key in section.model_fields_set:
                yield (*path, setting.key), getattr(section, setting.key)

    def problem(self, path: KeyPath, message: str) -> Problem:
        """Return a problem at the position of *path*."""
        if path[-1:] == (0,) and path not in self._tree.values:
            path = path[:-1]  # the file has one value, which stands for a list of it
        return Problem(self._tree.position(path), path_text(path), message)

    def references(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield the values that contain `${...}` as written, each with its key."""
        yield from self._tree.references.items()

    def literal_references(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield what looks like `${...}` in a value, and is no reference, with its key."""
        for path, text in self._tree.literals.items():
            yield path, "${...}" if _is_secret(path) else text

    def retired(self) -> list[Problem]:
        """Return a warning for each retired key of the file."""
        return [self.problem(path, text) for path, text in retired_keys(self._tree.value)]

    def without_secrets(self) -> Any:
        """Return the file as plain values: `${...}` as written, and no value of a secret key."""
        return _without_secrets(self._tree, (), self._tree.value)


def _sections(config: Config) -> Iterator[tuple[Place, KeyPath, Model]]:
    """Yield the sections of a file that may have keys of layers and extensions."""
    yield "top", (), config
    yield "policies", ("policies",), config.policies
    for index, route in enumerate(config.routes):
        yield "route", ("routes", index), route
        for number, target in enumerate(route.targets):
            yield "target", ("routes", index, "targets", number), target
    for index, listener in enumerate(config.listeners):
        yield "listener", ("listeners", index), listener
    for name, upstream in config.upstreams.items():
        yield "upstream", ("upstreams", name), upstream
    for name, model in config.models.items():
        yield "model", ("models", name), model


def load_file(path: Path, environment: Mapping[str, str] = os.environ) -> LoadedConfig:
    """Read and validate a configuration file.

    Raises:
        ConfigError: The file cannot be read or has errors.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(str(path), [Problem((1, 1), "", str(error.strerror))]) from error
    except UnicodeDecodeError as error:
        message = f"the file is not UTF-8: invalid byte at position {error.start}"
        raise ConfigError(str(path), [Problem((1, 1), "", message)]) from error
    return load_text(text, source=str(path), directory=path.parent, environment=environment)


def load_text(
    text: str,
    *,
    source: str = "<config>",
    directory: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> LoadedConfig:
    """Validate a configuration given as text.

    Args:
        text: YAML.
        source: Name of the configuration in errors.
        directory: Folder that paths are relative to; the current folder by default.
        environment: Variables of `${env:NAME}`.

    Raises:
        ConfigError: The text has errors.
    """
    directory = Path() if directory is None else directory
    tree = read_tree(text, environment, directory)
    problems = list(tree.problems)
    if not problems and not isinstance(tree.value, dict):
        message = "expected a mapping that begins with 'version: 1'"
        problems.append(Problem((1, 1), "", message))
    config = None
    if isinstance(tree.value, dict):
        try:
            config = config_type().model_validate(tree.value)
        except LookupError as error:  # of an installed package
            problems.append(Problem(NOWHERE, "", str(error)))
        except ValidationError as error:
            # Values that could not be read are missing in the tree: they are reported once.
            unreadable = {problem.path for problem in problems}
            problems += [one for one in _problems(tree, error) if one.path not in unreadable]
        problems += _reference_problems(tree)
        problems += [Problem(NOWHERE, "", fault) for fault in package_faults()]
    if problems or config is None:
        raise ConfigError(source, problems)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return LoadedConfig(config, tree, source, directory, sha256)


_SECRET_KEY = re.compile("password|secret|token(?!_checks)|api_?key|credential", re.IGNORECASE)
# Besides these keys: a URL with a user and a password.
_SECRET_TEXT = re.compile(
    rf"{_SECRET_KEY.pattern}|authorization|headers|://[^/\s]*@", re.IGNORECASE
)
_HIDDEN = "..."


def is_secret_text(line: str) -> bool:
    """Return whether a line of a file may hold a secret, so that it must not be printed."""
    return _SECRET_TEXT.search(line) is not None


def _without_secrets(tree: YamlTree, path: KeyPath, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(tree, (*path, key), one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_secrets(tree, (*path, index), one) for index, one in enumerate(value)]
    if path in tree.references:
        return tree.references[path]
    return _HIDDEN if value is not None and _is_secret(path) else value


def _is_secret(path: KeyPath) -> bool:
    is_header = path[:1] == ("upstreams",) and path[-2:-1] == ("headers",)
    is_header = is_header or path[-2:-1] == ("request_headers",)
    if path == ("quota_store", "url"):  # it may hold a password
        return True
    # The last name: what stands in a list of tokens is a token, too.
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    return is_header or _SECRET_KEY.search(name) is not None


# Pydantic's error types, in the words of a YAML file.
_MESSAGES = {
    "missing": "this key is required",
    "dict_type": "expected a mapping",
    "mapping_type": "expected a mapping",
    "model_type": "expected a mapping",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "too_short": "expected at least one entry",
    "is_instance_of": "expected a value",
    "string_type": "expected text",
    "int_parsing": "expected a whole number",
    "float_parsing": "expected a number",
    "bool_parsing": "expected true or false",
}
_NOT_EMPTY = "expected text that is not empty"
_PYDANTIC_PREFIX = "Input should be "
_MODEL_KEYS = {"backend", "signature", "batching", "cache", "protocols"}
_MEMBER_TYPES = {"literal_error", "model_type", "value_error"}
_TYPES_WITHOUT_VALUE = {"missing", "too_short", "value_error"}


def _problems(tree: YamlTree, error: ValidationError) -> list[Problem]:
    found = error.errors()
    # Pydantic reports a list with one wrong entry as too short, too: only the entry is reported.
    parents = {details["loc"][:end] for details in found for end in range(len(details["loc"]))}
    found = [
        details
        for details in found
        if not (details["type"] == "too_short" and details["loc"] in parents)
    ]
    choices: dict[KeyPath, list[ErrorDetails]] = {}
    problems = []
    for details in found:
        loc = details["loc"] or ("",)
        path = _source_path(tree, loc)
        # The last part names a member of a union, unless the file has it.
        is_member = len(loc) > 1 and loc[-1] != "[key]" and path not in tree.values
        if is_member and details["type"] in _MEMBER_TYPES:
            choices.setdefault(path[:-1], []).append(details)
        else:
            problems.append(_problem(tree, details))
    for path, members in choices.items():
        problems += _choice_problems(tree, path, members)
    return problems


def _choice_problems(
    tree: YamlTree, path: KeyPath, members: Sequence[ErrorDetails]
) -> Iterator[Problem]:
    """Yield the problems of a key that has a mapping or one of some texts as its value."""
    position, name, value = tree.position(path), path_text(path), members[0]["input"]
    if isinstance(value, Mapping):  # its keys have problems of their own
        for details in members:
            if details["type"] == "value_error":
                yield Problem(position, name, _text_message(details))
        return
    expected = [
        details["ctx"]["expected"].replace("False", "false")
        if details["type"] == "literal_error"
        else "a mapping"
        for details in members
    ]
    yield Problem(position, name, f"expected {' or '.join(expected)}, found {_value_text(value)}")


def _problem(tree: YamlTree, details: ErrorDetails) -> Problem:
    kind = details["type"]
    is_key = details["loc"][-1:] == ("[key]",)
    path = _source_path(tree, details["loc"][:-1] if is_key else details["loc"])
    if kind == "extra_forbidden":
        message = f"unknown key{key_hint(config_type(), details['loc'])}"
        return Problem(tree.position(path, of_key=True), path_text(path), message)
    message = _MESSAGES.get(kind) or _text_message(details)
    if kind not in _TYPES_WITHOUT_VALUE and not _is_secret(path):
        message = f"{message}, found {_value_text(details['input'])}"
    position = tree.position(path, of_key=is_key)
    message = _with_references(tree, path, message, details["input"])
    literal = tree.literals.get(path)
    if literal is not None:
        message = f"{message}; {reference_hint(literal)}"
    return Problem(position, path_text(path), message)


def _text_message(details: ErrorDetails) -> str:
    """Return the message of an error that has details of its own."""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        return f"expected {FORMS.get(pattern) or f'text of the form {pattern}'}"
    if kind == "string_too_long":
        return f"expected at most {context['max_length']} characters"
    if kind == "string_too_short":
        least = context["min_length"]
        return f"expected at least {least} characters" if least > 1 else _NOT_EMPTY
    message = details["msg"].removeprefix("Value error, ")
    if message.startswith(_PYDANTIC_PREFIX):
        return f"expected {message.removeprefix(_PYDANTIC_PREFIX)}"
    return message


def _with_references(tree: YamlTree, path: KeyPath, message: str, value: Any) -> str:
    """Return *message* with `${...}` as in the file, in place of the value that it stands for."""
    written = tree.references.get(path)
    if written is None or not isinstance(value, str):
        return message
    for text in (_value_text(value), repr(value), value):
        message = message.replace(text, repr(written))
    return message


def _source_path(tree: YamlTree, loc: tuple[str | int, ...]) -> KeyPath:
    """Return *loc* without the parts that pydantic adds, such as the tag of a union member."""
    path: KeyPath = ()
    last = len(loc) - 1
    for index, part in enumerate(loc):
        below = (*path, part)
        if below in tree.values or index == last:
            path = below
    return path


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else repr(value)[:80]


def _reference_problems(tree: YamlTree) -> Iterator[Problem]:
    """Yield names that are not defined or not unique, even where other keys are wrong."""
    root = tree.value
    upstreams = _mapping(root.get("upstreams"))
    models = _mapping(root.get("models"))
    own = {name for name, model in models.items() if _mapping(model).get("backend")}
    own |= _mapping(root.get("pipelines")).keys()

    def problem(path: KeyPath, message: str) -> Problem:
        return Problem(tree.position(path), path_text(path), message)

    yield from _duplicate_names(tree, "listeners", _list(root.get("listeners")), "main")
    yield from _duplicate_names(tree, "routes", _list(root.get("routes")), "route-{}")
    for index, listener in enumerate(_list(root.get("listeners"))):
        found = _mapping(listener).get("passthrough")
        upstream = found.get("upstream") if isinstance(found, dict) else found
        path: KeyPath = ("listeners", index, "passthrough")
        if upstream is not None and upstream not in upstreams:
            yield problem(path, _unknown_name("upstream", upstream, upstreams))
    for index, route in enumerate(_list(root.get("routes"))):
        for number, target in enumerate(_list(_mapping(route).get("targets"))):
            upstream, model = (_mapping(target).get(key) for key in ("upstream", "model"))
            path = ("routes", index, "targets", number)
            if upstream is not None and upstream not in upstreams:
                yield problem((*path, "upstream"), _unknown_name("upstream", upstream, upstreams))
            elif upstream is None and model is not None and model not in own:
                yield problem((*path, "model"), _unknown_name("model", model, own))
    for name, model in models.items():
        if isinstance(model, dict) and not model.keys() & _MODEL_KEYS:
            message = (
                "a model needs 'backend', or at least one of 'signature', 'batching', 'cache' and "
                "'protocols' for a model of an upstream"
            )
            yield problem(("models", name), message)


def _duplicate_names(
    tree: YamlTree, key: str, entries: list[Any], default: str
) -> Iterator[Problem]:
    names: set[str] = set()
    for index, entry in enumerate(entries):
        name = _mapping(entry).get("name", default.format(index + 1))
        if not isinstance(name, str):
            continue
        if name in names:
            path: KeyPath = (key, index, "name")
            message = f"duplicate name {name!r}: each of the {key} needs a different name"
            yield Problem(tree.position(path), path_text(path), message)
        names.add(name)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _unknown_name(kind: str, name: Any, names: Collection[str]) -> str:
    defined = ", ".join(sorted(names)) or "none"
    return f"unknown {kind} {name!r}: this file defines {defined}"
