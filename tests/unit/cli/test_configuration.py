"""`gateway validate`, `gateway explain` and `gateway schema`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from gateway.config.schema import json_schema

GOOD = """\
version: 1
listeners: [{http: 8000}]
upstreams: {a: {url: grpc://h}}
routes:
  - {name: special, match: {model: m, headers: {x-tenant: acme}}, targets: [{upstream: a, model: n}]}
  - {name: plain, match: {model: m}, targets: [{upstream: a}]}
"""
BAD = """\
version: 1
listeners: [{http: 8000, options: {oip: {colour: red}}}]
upstreams: {a: {url: grpc://h, extra: 1}}
"""


def gateway(*arguments: str | Path) -> Result:
    """Run the command line."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(command_line(words[:1]), words)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Return a valid configuration."""
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Return a configuration that the schema rejects."""
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    return path


def test_a_valid_configuration_is_ok(good: Path) -> None:
    """Only `ok` is printed, with status 0."""
    result = gateway("validate", good)
    assert (0, "ok\n", "") == (result.exit_code, result.stdout, result.stderr)


def test_problems_are_printed_with_their_positions(bad: Path) -> None:
    """Each problem is a line that editors can jump to, with status 1."""
    result = gateway("validate", bad)
    line = BAD.splitlines()[2]
    assert (
        1,
        f"{bad}:3:32: upstreams.a.extra: unknown key\n    {line}\n    {' ' * 31}^\n",
    ) == (result.exit_code, result.stdout)


def test_terminals_show_colours(
    bad: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caret is red, `warning` yellow and `ok` green; NO_COLOR disables them."""
    empty = tmp_path / "empty.yaml"
    empty.write_text("version: 1\nlisteners: [{http: 8000}]\n")
    coloured = {
        bad: "\x1b[31m^\x1b[0m",
        empty: ": \x1b[33mwarning\x1b[0m: ",
        good: "\x1b[32mok\x1b[0m",
    }
    monkeypatch.delenv("NO_COLOR", raising=False)
    for path, expected in coloured.items():
        result = CliRunner().invoke(command_line(["validate"]), ["validate", str(path)], color=True)
        assert expected in result.stdout
        assert "\x1b" not in gateway("validate", path).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    for path in coloured:
        result = CliRunner().invoke(command_line(["validate"]), ["validate", str(path)], color=True)
        assert "\x1b" not in result.stdout


def test_lines_with_secrets_are_not_shown(bad: Path) -> None:
    """The position is enough to find them."""
    bad.write_text(BAD.replace("extra: 1", "extra: 1, headers: {authorization: hidden}"))
    assert "hidden" not in gateway("validate", bad).stdout


def test_warnings_fail_only_with_strict(good: Path) -> None:
    """A file that can start is ok; `--strict` makes warnings errors."""
    good.write_text("version: 1\nlisteners: [{http: 8000}]\n")
    result = gateway("validate", good)
    assert (0, True) == (result.exit_code, result.stdout.endswith("ok\n"))
    assert f"{good}:1:1: warning: there is no upstream and no model" in result.stdout
    strict = gateway("validate", good, "--strict")
    assert (1, False) == (strict.exit_code, strict.stdout.endswith("ok\n"))
    found = json.loads(gateway("validate", good, "--strict", "--output", "json").stdout)
    assert (False, 1) == (found["ok"], len(found["warnings"]))


def test_protocol_options_are_checked(bad: Path) -> None:
    """The protocol checks its own options, and reports their position in the file."""
    bad.write_text(BAD.replace(", extra: 1", ""))
    result = gateway("validate", bad)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{bad}:2:41: listeners[0].options.oip: ")
    assert "colour" in result.stdout


def test_problems_are_printed_as_json(bad: Path, good: Path) -> None:
    """Programs parse problems as JSON."""
    problem = {"line": 3, "column": 32, "path": "upstreams.a.extra", "message": "unknown key"}
    result = gateway("validate", bad, "--output", "json")
    assert result.exit_code == 1
    found = {"file": str(bad), "ok": False, "problems": [problem], "warnings": []}
    assert found == json.loads(result.stdout)
    result = gateway("validate", "--config", good, "--output", "json")
    assert result.exit_code == 0
    found = {"file": str(good), "ok": True, "problems": [], "warnings": []}
    assert found == json.loads(result.stdout)


@pytest.mark.parametrize("arguments", [[], ["none.yaml"], ["--config", "none.yaml"], ["a", "b"]])
def test_wrong_usage_of_validate_exits_with_status_2(arguments: list[str]) -> None:
    """The file is missing, or too many are named; standard output stays empty."""
    result = gateway("validate", *arguments)
    assert (2, "") == (result.exit_code, result.stdout)
    assert result.stderr


def test_argument_and_config_option_are_exclusive(good: Path) -> None:
    """Both together are rejected."""
    result = gateway("validate", good, "--config", good)
    assert (2, "") == (result.exit_code, result.stdout)
    assert "expected either CONFIG.yaml or --config" in result.stderr


def test_explain_shows_the_route_of_a_call(good: Path) -> None:
    """Each route up to the selected one is listed with the reason, then its targets."""
    result = gateway("explain", good, "--model", "m")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["route", "matches", "why"]
    assert lines[1].split()[:2] == ["special", "no"]
    assert "x-tenant" in lines[1]
    assert lines[2].split()[:2] == ["plain", "yes"]
    assert lines[4] == "m uses route plain, to:"
    assert "upstream 'a' (oip+grpc://h:8001)" in lines[5]
    assert lines[6] == "Failed calls are retried:"
    assert "if unsent: up to 2 attempts" in lines[7]


def test_explain_considers_headers_version_and_protocol(good: Path) -> None:
    """Flags set the fields of the call; JSON has the same content."""
    arguments = ["--header", "X-Tenant=acme", "--version", "1", "--protocol", "oip.grpc"]
    result = gateway("explain", "-c", good, "-m", "m", *arguments, "-o", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["route"] == "special"
    assert [found["verdicts"][0][:2]] == [["special", True]]
    assert "as model 'n'" in found["targets"][0]


def test_explain_without_a_matching_route_exits_with_status_1(good: Path) -> None:
    """The reasons are still printed; the verdict is on standard error."""
    result = gateway("explain", good, "--model", "other")
    assert result.exit_code == 1
    assert result.stderr == "gateway: no route matches other over oip.http\n"
    assert "plain" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "m", "--header", "x"], "--header is 'x'; expected NAME=VALUE"),
        ([], "--model"),
    ],
)
def test_wrong_usage_of_explain_exits_with_status_2(
    good: Path, arguments: list[str], message: str
) -> None:
    """The error names the flag."""
    result = gateway("explain", good, *arguments)
    assert (2, "") == (result.exit_code, result.stdout)
    assert message in result.stderr


def test_explain_needs_a_valid_configuration(bad: Path) -> None:
    """Problems of the file are printed on standard error, with status 2."""
    result = gateway("explain", bad, "--model", "m")
    assert (2, "") == (result.exit_code, result.stdout)
    assert "upstreams.a.extra: unknown key" in result.stderr


def test_prints_the_schema() -> None:
    """The schema is printed as one JSON document."""
    result = gateway("schema")
    assert (0, json_schema()) == (result.exit_code, json.loads(result.stdout))
