"""The safe subset of YAML: values, positions, references, and files that expand too far."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.yaml_tree import (
    MAX_ALIASES,
    MAX_BYTES,
    MAX_DEPTH,
    YamlTree,
    path_text,
    read_tree,
)


def read(text: str, directory: Path = Path(), **environment: str) -> YamlTree:
    """Read *text* with an environment."""
    return read_tree(text, environment, directory)


def problems(text: str) -> list[str]:
    """Return the problems of *text* as they are printed."""
    return [str(problem) for problem in read(text).problems]


def test_every_scalar_stays_text() -> None:
    """Booleans, numbers and times of YAML stay text; the schema decides the type."""
    text = "{a: no, b: 1.10, c: 12:30:00, d: 0o17, e: 2026-01-01, f: =}"
    expected = {"a": "no", "b": "1.10", "c": "12:30:00", "d": "0o17", "e": "2026-01-01", "f": "="}
    assert expected == read(text).value


def test_empty_values_are_null_unless_quoted() -> None:
    """A plain ~, null or empty value is None. A quoted one is text."""
    assert {"a": None, "b": None, "c": "", "d": "null"} == read(
        "{a: ~, b: , c: '', d: 'null'}"
    ).value


def test_returns_the_position_of_keys_and_values() -> None:
    """Lines and columns count from 1. A missing key has the position of its parent."""
    tree = read("a:\n  - b: 1\n    c: 2\n")
    assert tree.position(("a", 0, "c")) == (3, 8)
    assert tree.position(("a", 0, "c"), of_key=True) == (3, 5)
    assert tree.position(("a", 0, "missing")) == (2, 5)


def test_writes_paths() -> None:
    """Keys are joined with dots, and indexes are in brackets."""
    assert path_text(("routes", 2, "upstream")) == "routes[2].upstream"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: the file is empty"),
        ("# only a comment\n", "1:1: the file is empty"),
        ("{a: 1, a: 2}", "1:8: a: duplicate key 'a': first used on line 1"),
        ("a: !!python/name:os.system x", "1:4: a: tag 'tag:yaml.org,2002:python/name:os.system'"),
        ("a: !!binary aGk=", "1:4: a: tag 'tag:yaml.org,2002:binary' is not allowed"),
        ("!!set {a}", "1:1: tag 'tag:yaml.org,2002:set' is not allowed"),
        ("a: !own [1]", "1:4: a: tag '!own' is not allowed"),
        ("? [a]\n: 1", "1:3: a key must be text, not a list or a mapping"),
        ("<<: {a: 1}", "1:1: merge keys (<<) are not supported: repeat the keys"),
        ("a:\n  b: 1\n\tc: 1", "3:1: not YAML: a tab indents this line; expected spaces"),
        ("a: *b", "1:4: not YAML: found undefined alias 'b'"),
        ("a: {b", "1:6: not YAML: while parsing a flow mapping, expected ',' or '}'"),
        ("a: 1\n---\nb: 1", "2:1: not YAML: expected a single document"),
        ("a: \x01", "1:1: not YAML: unacceptable character"),
        (
            "a: ${env:NONE}",
            "1:4: a: environment variable 'NONE' is not set: set it, or write ${env:NONE:-DEFAULT}",
        ),
        ("a: ${file:none.txt}", "1:4: a: cannot read 'none.txt': No such file or directory"),
    ],
)
def test_reports_problems_with_positions(text: str, message: str) -> None:
    """Each mistake is reported once, with its line and column."""
    (found,) = problems(text)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * (MAX_DEPTH + 1), "nested too deeply: at most 32 levels"),
        ("[" * 100_000, "nested too deeply: at most 32 levels"),
        (f"- &a x\n{'- *a' + chr(10)}" + "- *a\n" * MAX_ALIASES, "too many aliases: at most 100"),
        ("a: &x {a: *x}", "aliases are nested too deeply: at most 32 levels"),
        ("a: &x [*x]", "aliases are nested too deeply: at most 32 levels"),
        ("a" * (MAX_BYTES + 1), "the file has 1048577 bytes; at most 1048576 are allowed"),
    ],
    ids=["deep", "very deep", "aliases", "itself", "itself in a list", "large"],
)
def test_rejects_files_that_expand_too_far(text: str, message: str) -> None:
    """A file that costs too much time, memory or recursion is one problem."""
    (found,) = problems(text)
    assert message in found


def test_rejects_aliases_of_aliases() -> None:
    """Ten lines that expand to ten billion values are rejected without expansion."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (found,) = problems("\n".join(lines))
    assert "aliases expand to too many values: at most 100000" in found


def test_rejects_nested_aliases() -> None:
    """Levels are counted after aliases are expanded."""
    lines = ["a0: &a0 [[[[[[[[[[x]]]]]]]]]]"]
    lines += [f"a{n}: &a{n} [[[[[[[[[[*a{n - 1}]]]]]]]]]]" for n in range(1, 60)]
    (found,) = problems("\n".join(lines))
    assert "aliases are nested too deeply: at most 32 levels" in found


def test_an_alias_repeats_its_values() -> None:
    """An alias within the limits has the values of its anchor."""
    assert read("{a: &x [1], b: *x}").value == {"a": ["1"], "b": ["1"]}


def test_accepts_files_at_the_limits() -> None:
    """The largest depth and the largest number of aliases are accepted."""
    assert [] == problems("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert [] == problems("- &a x\n" + "- *a\n" * MAX_ALIASES)


def test_replaces_environment_variables() -> None:
    """A reference becomes the variable, or the default if the variable is unset or empty."""
    text = (
        "{a: 'x${env:A}y', b: '${env:B:-d}', c: '${env:C:-d:-e}', d: '${env:D}', e: '${env:D:-d}'}"
    )
    expected = {"a": "x1y", "b": "d", "c": "d:-e", "d": "", "e": "d"}
    assert expected == read(text, A="1", D="").value


def test_replaces_files(tmp_path: Path) -> None:
    """A reference becomes the text of the file without its last newline; paths are relative."""
    (tmp_path / "token").write_text("secret\n")
    assert read("a: ${file:token}", tmp_path).value == {"a": "secret"}


def test_a_file_that_is_not_utf_8_is_a_problem(tmp_path: Path) -> None:
    """A referenced file must be UTF-8."""
    (tmp_path / "token").write_bytes(b"\xff")
    (problem,) = read("a: ${file:token}", tmp_path).problems
    assert problem.message.endswith("not UTF-8")


def test_content_of_a_reference_is_not_yaml() -> None:
    """A secret cannot add keys, lists or further references."""
    evil = "1\nb: 2 [x] ${env:OTHER}"
    assert read("a: ${env:EVIL}", EVIL=evil, OTHER="no").value == {"a": evil}
