"""Names of modules and classes: each class name occurs once, and no module has a household name."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

# The first test parses the whole package: 2 s, and ten times that on a machine with other work.
pytestmark = pytest.mark.timeout(120)

PACKAGE = Path(__file__).parents[2] / "gateway"

# Generated, or a role that every protocol or transport implementation has under the same name.
ROLES = frozenset(
    {
        "Client",
        "GrpcClient",
        "GrpcCodec",
        "GrpcServer",
        "HttpClient",
        "HttpCodec",
        "HttpServer",
        "InferMessage",
        "UpstreamErrorText",
    }
)

# What modules were called before: words that a reader cannot guess the contents from.
HOUSEHOLD_WORDS = frozenset(
    [
        "alike",
        "answered",
        "answers",
        "arrival",
        "arriving",
        "asking",
        "beside",
        "declared",
        "doors",
        "elements_of",
        "filling",
        "flow",
        "forms",
        "gates",
        "gathering",
        "graphs",
        "heads",
        "joining",
        "keys_of",
        "knowledge",
        "known",
        "land",
        "landing",
        "last_comers",
        "lean",
        "makes",
        "members",
        "mould",
        "moulds",
        "numbering",
        "pace",
        "pieces",
        "places",
        "presence",
        "remembered",
        "said",
        "scans",
        "seat",
        "settled",
        "sharing",
        "shown",
        "sides",
        "single",
        "stand_ins",
        "starting",
        "tally",
        "taken",
        "told",
        "totals",
        "tour",
        "trends",
        "turns",
        "unloaded",
        "unsequenced",
        "waiting",
    ]
)

# Verbs and participles that say nothing as the name of a class.
BANNED_CLASSES = frozenset(
    {"Alarm", "Answer", "Asked", "Door", "Known", "Mould", "Pace", "Place", "Said", "Seat", "Taken"}
)


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "schema" not in path.parts]


@cache
def classes() -> dict[str, list[str]]:
    """Return the modules that define each class at their top level."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return found


def test_a_class_name_occurs_once() -> None:
    """A class is understood without its module; only roles repeat their names."""
    repeated = {
        name: paths for name, paths in classes().items() if len(paths) > 1 and name not in ROLES
    }
    assert {} == repeated


def test_roles_are_still_repeated() -> None:
    """An exception that nothing needs any more is removed from the list."""
    assert ROLES == {name for name, paths in classes().items() if len(paths) > 1} & ROLES


def test_no_class_is_called_by_a_household_word() -> None:
    """Classes have standard terms for names."""
    assert set() == BANNED_CLASSES & set(classes())


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_is_called_by_its_contents(path: Path) -> None:
    """Module names are nouns of the field, and carriers are folders, not prefixes."""
    assert path.stem not in HOUSEHOLD_WORDS
    assert not path.stem.startswith(("http_", "grpc_", "http1_", "http2_")) or (
        "reference" in path.parts
    )


@pytest.mark.parametrize(
    "package",
    [path.parent for path in modules() if path.name == "__init__.py"],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_a_package_says_what_lives_there(package: Path) -> None:
    """The first lines of `__init__` are a docstring of more than a placeholder."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert text is not None
    assert len(text.split()) > 4
