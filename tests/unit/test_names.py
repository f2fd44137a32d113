"""Names: each class name occurs once, no module has a household name, and values are nouns."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

# The first test parses the whole package: 2 s, and ten times that on a machine with other work.
pytestmark = pytest.mark.timeout(120)

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "gateway"

# Generated, or a role that every protocol or transport implementation has under the same name.
ROLES = frozenset(
    {
        "Client",
        "Event",
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

# Participles that do not say what a value is or what a function does.
PARTICIPLES = frozenset(
    {"asked", "joined", "lacks", "meant", "placed", "said", "settled", "taken", "told"}
)
_PARTICIPLE = re.compile(rf"\b_*(?:{'|'.join(sorted(PARTICIPLES))})_*\b")

# Words that hide the behaviour which the name of a test describes.
HOUSEHOLD_TEST_WORDS = frozenset(
    [
        "alike",
        "anew",
        "answer",
        "answered",
        "answers",
        "apart",
        "ask",
        "asked",
        "asks",
        "elsewhere",
        "given",
        "goes",
        "however",
        "laid",
        "nobody",
        "said",
        "say",
        "says",
        "stands",
        "tell",
        "tells",
        "told",
        "who",
    ]
)

# Folders and files without such names. Others of `benchmarks`, `gateway` and `tests` still have some.
NOUN_ROOTS = ("benchmarks", "demo", "gateway", "tests")


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "schema" not in path.parts]


@cache
def parsed(text: str) -> ast.Module:
    """Parse a module once for all tests."""
    return ast.parse(text)


@cache
def classes() -> dict[str, list[str]]:
    """Return the modules that define each class at their top level."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in parsed(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return found


def test_a_class_name_occurs_once() -> None:
    """A class is understood without its module; only roles repeat their names."""
    repeated = {
        name: paths for name, paths in classes().items() if len(paths) > 1 and name not in ROLES
    }
    assert {} == repeated


@pytest.mark.migration
def test_every_role_is_still_repeated() -> None:
    """An exception that is not needed any more is removed from the list."""
    assert ROLES == {name for name, paths in classes().items() if len(paths) > 1} & ROLES


def test_no_class_has_a_household_name() -> None:
    """Classes have standard terms for names."""
    assert set() == BANNED_CLASSES & set(classes())


def test_a_module_is_named_after_its_contents() -> None:
    """Module names are nouns of the field, and carriers are folders, not prefixes."""
    assert [] == [path for path in modules() if path.stem in HOUSEHOLD_WORDS]
    assert [] == [
        path
        for path in modules()
        if path.stem.startswith(("http_", "grpc_", "http1_", "http2_"))
        and "reference" not in path.parts
    ]


def test_a_package_has_a_docstring() -> None:
    """The docstring of `__init__` has more than four words."""
    packages = [path for path in modules() if path.name == "__init__.py"]
    assert packages
    assert [] == [
        path
        for path in packages
        if len((ast.get_docstring(parsed(path.read_text())) or "").split()) <= 4
    ]


def stored_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each variable, parameter, function and attribute of a module."""
    for node in ast.walk(parsed(text)):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ) as named:
                yield named.lineno, name


def participles(text: str) -> list[tuple[int, str]]:
    """Return those of the stored names that are a participle, with their lines."""
    if _PARTICIPLE.search(text) is None:  # as in most modules, which need not be parsed
        return []
    return [(line, name) for line, name in stored_names(text) if name.strip("_") in PARTICIPLES]


@pytest.mark.parametrize(
    "text",
    [
        "told = 1",
        "told: int = 1",
        "told += 1",
        "[told for told in x]",
        "(told := 1)",
        "x._told = 1",
        "def told_(): pass",
        "async def told(): pass",
        "def f(*, told): pass",
        "lambda told: 0",
        "for told, x in y: pass",
        "with x as told: pass",
        "try: pass\nexcept ValueError as told: pass",
        "match x:\n case [told, *_]: pass",
        "match x:\n case [*told]: pass",
    ],
)
def test_participles_are_found_in_every_stored_name(text: str) -> None:
    """Underscores around a name do not hide it."""
    assert ["told"] == [name.strip("_") for _, name in participles(text)]


@pytest.mark.parametrize("text", ["f(told=x.told)", "x[told]", "is_told = untold = 'told'"])
def test_names_that_are_only_read_are_not_counted(text: str) -> None:
    """Names that only contain such a word are not counted, either."""
    assert [] == participles(text)


@pytest.mark.parametrize("root", NOUN_ROOTS)
def test_values_are_named_by_nouns(root: str) -> None:
    """A participle does not describe the content of a variable or the purpose of a function."""
    path = REPOSITORY / root
    paths = [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert paths
    assert [] == [
        f"{each.relative_to(REPOSITORY)}:{line} {name}"
        for each in paths
        for line, name in participles(each.read_text())
    ]


_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def household_tests(text: str) -> list[tuple[int, str]]:
    """Return the test functions of a module that have such a word in their names, with lines."""
    return [
        (1 + text.count("\n", 0, found.start(1)), found[1])
        for found in _TEST.finditer(text)
        if HOUSEHOLD_TEST_WORDS & set(found[1].split("_")) or "so_many" in found[1]
    ]


def test_household_words_are_found_in_test_names() -> None:
    """Functions and coroutines count, at the top and in classes."""
    text = "def test_it_says(): pass\nclass A:\n    async def test_so_many(self): pass\n"
    assert [(1, "test_it_says"), (3, "test_so_many")] == household_tests(text)


def test_test_names_have_the_fields_words() -> None:
    """The name of a test describes a behaviour in standard terms."""
    assert [] == [
        f"{path.relative_to(REPOSITORY)}:{line} {name}"
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        for line, name in household_tests(path.read_text())
    ]


_SECTION = re.compile(r"^(?:Args|Attributes):\n((?: +.*(?:\n|$)|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\*{0,2}\w+): (.*(?:\n     +.*)*)", re.MULTILINE)
_REFERS = re.compile(r"(As|Of|See|Like|The same|Same|Those of)\b")
_MAY_REFER = re.compile(rf"\w:\s+{_REFERS.pattern}")


def referring_entries(text: str) -> list[str]:
    """Return the short entries of docstrings that only point elsewhere."""
    found: list[str] = []
    if _MAY_REFER.search(text) is None:  # as in most modules, which need not be parsed
        return found
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for section in _SECTION.findall(ast.get_docstring(node) or ""):
                entries = (
                    (name, " ".join(words.split())) for name, words in _ENTRY.findall(section)
                )
                found += [
                    f"{node.name}.{name}: {entry}"
                    for name, entry in entries
                    if len(entry.split()) <= 6 and _REFERS.match(entry)
                ]
    return found


@pytest.mark.parametrize(
    "entry", ["As given.", "Of the route.", "See `Frontend`.", "Those of\n            `Batch`."]
)
def test_entries_that_only_refer_are_found(entry: str) -> None:
    """A short entry that begins with such a word describes nothing, on one line or two."""
    text = (
        f'def f(x):\n    """Do.\n\n    Args:\n        x: {entry}\n        y: A number.\n    """\n'
    )
    assert [f"f.x: {' '.join(entry.split())}"] == referring_entries(text)


@pytest.mark.parametrize("root", ["benchmarks", "gateway"])
def test_entries_describe_what_they_stand_for(root: str) -> None:
    """No short entry of `Args` or `Attributes` only points elsewhere."""
    assert [] == [
        f"{path.relative_to(REPOSITORY)}: {entry}"
        for path in sorted((REPOSITORY / root).rglob("*.py"))
        for entry in referring_entries(path.read_text())
    ]


def renaming_imports(text: str) -> list[str]:
    """Return the imports that give something of this repository another name than `pb`."""
    return [
        f"{node.lineno}: {each.name} as {each.asname}"
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
        if each.asname not in (None, each.name, "pb")
        and ((isinstance(node, ast.ImportFrom) and node.module) or each.name).split(".")[0]
        in ("benchmarks", "gateway", "tests")
    ]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from gateway.ir import data as d", 1),
        ("import gateway.ir as ir", 1),
        ("from gateway.schema import grps_pb2 as pb", 0),
        ("from gateway.wire.frontend import Frontend as Frontend", 0),
        ("import numpy as np", 0),
    ],
)
def test_renaming_imports_are_found(text: str, count: int) -> None:
    """Generated messages are `pb`; a part of an interface may be exported under its own name."""
    assert count == len(renaming_imports(text))


@pytest.mark.parametrize("root", ["benchmarks", "gateway", "schemas"])
def test_no_import_renames_what_is_ours(root: str) -> None:
    """A name means the same in every module."""
    assert [] == [
        f"{path.relative_to(REPOSITORY)}:{found}"
        for path in sorted((REPOSITORY / root).rglob("*.py"))
        for found in renaming_imports(path.read_text())
    ]
