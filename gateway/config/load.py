"""Text -> Config; every error of a file at once, each with its line and column."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.models import Config
from gateway.config.tree import KeyPath, Problem, Tree, path_text, read_tree


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
            problems += _problems(tree, error)
        problems += _broken_references(tree)
    if problems or config is None:
        raise ConfigError(source, problems)
    return Loaded(config, tree, source, directory)


def _problems(tree: Tree, error: ValidationError) -> list[Problem]:
    found = error.errors()
    # A list whose only item is wrong is "too short" to pydantic as well: one word is enough.
    wrong = {details["loc"][:-1] for details in found} | {details["loc"][:-2] for details in found}
    return [
        _problem(tree, details)
        for details in found
        if not (details["type"] == "too_short" and details["loc"] in wrong)
    ]


def _problem(tree: Tree, details: ErrorDetails) -> Problem:
    path = _known_path(tree, details["loc"])
    if details["type"] == "extra_forbidden":
        return Problem(tree.place(path, of_key=True), path_text(path), "unknown key")
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == "missing":
        message = "this key is required"
    elif details["type"] != "value_error":
        message = f"{message}, found {_shown(details['input'])}"
    return Problem(tree.place(path), path_text(path), message)


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

    def problem(path: KeyPath, message: str) -> Problem:
        return Problem(tree.place(path), path_text(path), message)

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
        if isinstance(model, dict) and not model.keys() & {"backend", "signature"}:
            message = "a model needs 'backend', or 'signature' for an upstream's"
            yield problem(("models", name), message)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _unknown(kind: str, name: Any, known: Any) -> str:
    names = ", ".join(sorted(known)) or "none"
    return f"there is no {kind} {name!r} in this file; there is: {names}"
