"""Console blocks of the documentation: commands exist with their flags, and print what pages show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import all_commands, command_line

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(console|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.yaml)\n")
FLAG = re.compile(r"^--[a-z][a-z-]*|^-[a-zA-Z]$")
EXAMPLE = re.compile(r"^  Example: gateway (.*)$", re.MULTILINE)
# A command that is hidden, and the one that calls it.
PUBLIC_NAMES = {"migration-demo": "demo"}
# They need neither a server nor an address of this machine.
OFFLINE = frozenset({"validate", "explain", "schema"})
TUTORIALS = sorted((ROOT / "docs" / "tutorial").glob("*.md"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands(page: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the words of each command of the gateway on a page, and the output below it."""
    for language, code in BLOCK.findall(page.read_text("utf-8")):
        if language != "console":
            continue
        for part in re.split(r"^\$ ", code.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            command = re.split(r"\s(?:&|\||>|&&|;|#)(?:\s|$)|&$", line)[0]
            if command.startswith("gateway "):
                words = shlex.split(command)[1:]
                # What follows "--" is the command line of another program.
                yield words[: words.index("--") if "--" in words else None], output


@cache
def flags_of(verb: str) -> frozenset[str]:
    """Return the flags of a command, and those of its own commands."""
    app = command_line([verb])
    runner = CliRunner(env={"COLUMNS": "200"})
    text = runner.invoke(app, [verb, "--help"]).stdout
    for inner in inner_commands(verb):
        text += runner.invoke(app, [verb, inner, "--help"]).stdout
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][a-z-]*", text))


@pytest.mark.migration
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist_with_their_flags(page: Path) -> None:
    """A command on a page has the verb and the flags that the program has."""
    wrong = []
    for words, _ in commands(page):
        verb = words[0]
        if verb in {"--version", "--help"}:
            continue
        if verb not in all_commands():
            wrong.append(verb)
            continue
        given = [found[0] for word in words[1:] if (found := FLAG.match(word))]
        wrong += [f"{verb} {flag}" for flag in given if flag not in flags_of(verb)]
    assert [] == wrong


@cache
def inner_commands(verb: str) -> frozenset[str]:
    """Return the commands of a command that has its own."""
    text = CliRunner(env={"COLUMNS": "200"}).invoke(command_line([verb]), [verb, "--help"]).stdout
    found = re.findall(r"^  ([a-z][a-z-]+)(?:  |$)", text.partition("Commands:")[2], re.MULTILINE)
    return frozenset(found)


@pytest.mark.migration
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_the_prose_exist_with_their_flags(page: Path) -> None:
    """What a sentence or a table tells users to type is what the program has."""
    wrong = []
    for line in re.findall(r"`gateway ((?!\.)[a-z][^`]*)`", CODE.sub("", page.read_text("utf-8"))):
        words = line.split()
        verb, *rest = words[: words.index("--") if "--" in words else None]
        if verb not in all_commands():
            wrong.append(line)
            continue
        given = {found[0] for word in rest if (found := FLAG.match(word))}
        names = set(rest[0].split("|")) if rest and inner_commands(verb) else set()
        names = {name for name in names if not name.startswith(("-", "[")) and not name.isupper()}
        if given - flags_of(verb) or names - inner_commands(verb):
            wrong.append(line)
    assert [] == wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_targets_of_make_exist(page: Path) -> None:
    """What a console block makes is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    blocks = [
        code for language, code in BLOCK.findall(page.read_text("utf-8")) if language == "console"
    ]
    made = {
        found for code in blocks for found in re.findall(r"^\$ make ([a-z-]+)", code, re.MULTILINE)
    }
    assert set() == made - targets


@pytest.mark.parametrize("verb", sorted(all_commands()))
def test_help_has_an_example(verb: str) -> None:
    """The help of each command shows a call of it, with flags that it has."""
    app = command_line([verb])
    text = CliRunner(env={"COLUMNS": "200"}).invoke(app, [verb, "--help"]).stdout
    (example,) = EXAMPLE.findall(text)
    words = shlex.split(example)
    assert words[0] in {verb, PUBLIC_NAMES.get(verb)}
    given = {found[0] for word in words[1:] if (found := FLAG.match(word))}
    assert given <= flags_of(words[0])


def matches(shown: str, printed: str, *, any_number: bool = False) -> bool:
    """Return whether *printed* is what a page shows; `...` stands for anything.

    With *any_number* a number stands for any number, and spaces for any spaces.
    """
    parts = [re.escape(part) for part in shown.strip().split("...")]
    if any_number:
        parts = [_VARIES.sub(_other, part) for part in shown.strip().split("...")]
    return re.fullmatch(".*".join(parts), printed.strip(), re.DOTALL) is not None


_VARIES = re.compile(r"\d[\d.,]*|\s+|[^\d\s]+")


def _other(found: re.Match[str]) -> str:
    if found[0].isspace():
        return r"\s+"
    return r"\d[\d.,]*" if found[0][0].isdecimal() else re.escape(found[0])


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_tutorials_print_what_they_show(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and offline commands of a tutorial are run in order, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    for language, code in BLOCK.findall(page.read_text("utf-8")):
        if language == "yaml" and (named := FILE.match(code)):
            Path(named[1]).write_text(code, encoding="utf-8")
    for words, output in commands(page):
        if words[0] in OFFLINE:
            result = CliRunner().invoke(command_line(words[:1]), words)
            assert matches(output, result.stdout), (words, result.output)


def test_other_output_is_found() -> None:
    """An ellipsis matches anything, and nothing else does."""
    assert matches("a\n...\nb\n", "a\nx\ny\nb\n")
    assert not matches("a\n", "b\n")
    assert not matches("a\n...\nb\n", "a\nx\nc\n")


def test_only_marked_numbers_match_any_other() -> None:
    """Columns may have another width then; words must be the same."""
    assert matches("a.b   516  2 (99.3%)\n", "a.b 9 12 (1.25%)\n", any_number=True)
    assert not matches("a.b 516\n", "a.b 9\n")
    assert not matches("a.b 516\n", "a.c 9\n", any_number=True)
