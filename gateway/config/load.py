"""Text -> Config; every error of a file at once, each with its line and column."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.models import Config
from gateway.config.yaml_tree import KeyPath, Problem, Tree, path_text, read_tree


class ConfigError(ValueError):
    """A configuration that cannot be used.

    Attributes:
        problems: All that is wrong, in the order of the file.
    """

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = sorted(problems, key=lambda problem: problem.place)
        super().__init__("\n".join(f"{source}:{problem}" for problem in self.problems))


class Loaded:
    """A configuration and the places of its keys, for checks that know more than the schema."""

    def __init__(self, config: Config, tree: Tree, source: str, directory: Path) -> None:
        self.config = config
        self.source = source
        self.directory = directory
        self._tree = tree

    def changed(self, **fields: Any) -> Loaded:
        """Return a copy whose configuration has other values at its top level."""
        config = self.config.model_copy(update=fields)
        return Loaded(config, self._tree, self.source, self.directory)

    def problem(self, path: KeyPath, message: str) -> Problem:
        """Return a problem at *path*."""
        return Problem(self._tree.place(path), path_text(path), message)


def load_file(path: Path, environment: Mapping[str, str] = os.environ) -> Loaded:
    """Read and check a configuration file.

    Raises:
        ConfigError: Anything is wrong with it.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(str(path), [Problem((1, 1), "", str(error.strerror))]) from error
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start}"
        raise ConfigError(str(path), [Problem((1, 1), "", message)]) from error
    return load_text(text, source=str(path), directory=path.parent, environment=environment)


def load_text(
    text: str,
    *,
    source: str = "<config>",
    directory: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Loaded:
    """Check a configuration given as text.

    Raises:
        ConfigError: Anything is wrong with it.
    """
    directory = Path() if directory is None else directory
    tree = read_tree(text, environment, directory)
    problems = list(tree.problems)
    if not problems and not isinstance(tree.value, dict):
        problems.append(Problem((1, 1), "", "the file must be a mapping, starting 'version: 1'"))
    config = None
    # What cannot be parsed at all is not judged any further; what can is judged whole.
    if isinstance(tree.value, dict):
        try:
            config = Config.model_validate(tree.value)
        except ValidationError as error:
            # Where reading failed there is nothing to judge.
            unread = {problem.path for problem in problems}
            problems += [found for found in _problems(tree, error) if found.path not in unread]
        problems += _broken_references(tree)
    if problems or config is None:
        raise ConfigError(source, problems)
    return Loaded(config, tree, source, directory)


# Pydantic's words for what people write in YAML.
_WORDS = {
    "missing": "this key is required",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "model_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "too_short": "needs at least one item",
    "is_instance_of": "must not be empty",
    "string_type": "must be text",
}
_SAID_OF_MODELS = {"backend", "signature", "batching", "cache"}
_WITHOUT_VALUE = {"missing", "too_short", "value_error"}


def _problems(tree: Tree, error: ValidationError) -> list[Problem]:
    found = error.errors()
    # A list whose only item is wrong is "too short" to pydantic as well: one word is enough.
    wrong = {details["loc"][:end] for details in found for end in range(len(details["loc"]))}
    return [
        _problem(tree, details)
        for details in found
        if not (details["type"] == "too_short" and details["loc"] in wrong)
    ]


def _problem(tree: Tree, details: ErrorDetails) -> Problem:
    kind = details["type"]
    is_key = details["loc"][-1:] == ("[key]",)
    path = _known_path(tree, details["loc"][:-1] if is_key else details["loc"])
    if kind == "extra_forbidden":
        return Problem(tree.place(path, of_key=True), path_text(path), "unknown key")
    message = _WORDS.get(kind, details["msg"].removeprefix("Value error, "))
    if kind not in _WITHOUT_VALUE:
        message = f"{message}, found {_shown(details['input'])}"
    place = tree.place(path, of_key=is_key)
    return Problem(place, path_text(path), _unresolved(tree, path, message, details["input"]))


def _unresolved(tree: Tree, path: KeyPath, message: str, value: Any) -> str:
    """Return *message* with `${...}` as it is written where it shows what that stands for."""
    written = tree.references.get(path)
    if written is None or not isinstance(value, str):
        return message
    for shown in (_shown(value), repr(value), value):
        message = message.replace(shown, repr(written))
    return message


def _known_path(tree: Tree, loc: tuple[str | int, ...]) -> KeyPath:
    """Return *loc* without what pydantic adds, such as the tag of a union's arm."""
    path: KeyPath = ()
    last = len(loc) - 1
    for index, part in enumerate(loc):
        below = (*path, part)
        if below in tree.values or index == last:
            path = below
    return path


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else repr(value)[:80]


def _broken_references(tree: Tree) -> Iterator[Problem]:
    """Find names that stand for nothing; works on what is there, however wrong the rest is."""
    root = tree.value
    upstreams = _mapping(root.get("upstreams"))
    models = _mapping(root.get("models"))
    own = {name for name, model in models.items() if _mapping(model).get("backend")}
    own |= _mapping(root.get("pipelines")).keys()

    def problem(path: KeyPath, message: str) -> Problem:
        return Problem(tree.place(path), path_text(path), message)

    yield from _repeated_names(tree, "listeners", _list(root.get("listeners")), default="main")
    yield from _repeated_names(tree, "routes", _list(root.get("routes")), default=None)
    for index, listener in enumerate(_list(root.get("listeners"))):
        wanted = _mapping(listener).get("passthrough")
        path: KeyPath = ("listeners", index, "passthrough")
        if wanted is not None and wanted not in upstreams:
            yield problem(path, _unknown("upstream", wanted, upstreams))
    for index, route in enumerate(_list(root.get("routes"))):
        for number, target in enumerate(_list(_mapping(route).get("targets"))):
            upstream, model = (_mapping(target).get(key) for key in ("upstream", "model"))
            path = ("routes", index, "targets", number)
            if upstream is not None and upstream not in upstreams:
                yield problem((*path, "upstream"), _unknown("upstream", upstream, upstreams))
            elif upstream is None and model is not None and model not in own:
                yield problem((*path, "model"), _unknown("model", model, own))
    for name, model in models.items():
        if isinstance(model, dict) and not model.keys() & _SAID_OF_MODELS:
            message = (
                "a model needs 'backend', or 'signature', 'batching' or 'cache' for an upstream's"
            )
            yield problem(("models", name), message)


def _repeated_names(
    tree: Tree, key: str, items: list[Any], *, default: str | None
) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        name = _mapping(item).get("name", default)
        if not isinstance(name, str):
            continue
        if name in seen:
            path: KeyPath = (key, index, "name")
            message = f"the name {name!r} is taken by another of the {key}; each needs its own"
            yield Problem(tree.place(path), path_text(path), message)
        seen.add(name)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _unknown(kind: str, name: Any, known: Any) -> str:
    names = ", ".join(sorted(known)) or "none"
    return f"there is no {kind} {name!r} in this file; there is: {names}"
