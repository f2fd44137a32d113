"""`gateway explain --client`: whether a client may make a call."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from gateway.config.permissions import OPERATIONS as CONFIGURED
from gateway.policies.access.operations import OPERATIONS

CONFIG = """\
version: 1
listeners: [{http: 8000, name: main}, {http: 8010, name: inner}]
upstreams:
  triton: {url: "oip+http://127.0.0.1:9"}
clients:
  fraud: {groups: [finance], tier: gold, labels: {team: "7"}}
security:
  rules:
    - name: fraud-infers
      clients: [fraud]
      operations: [health, metadata, inference, index]
      models: ["fraud*"]
      versions: ["", 1]
      max_elements: 10
    - {name: no-control, effect: deny, groups: [finance], operations: [model-repository]}
    - {clients: [anonymous], operations: inference, listeners: inner, claims: {a: b}}
"""


NEAREST = "access: deny, no rule allows it; nearest is rule fraud-infers:"
OPERATION = "'health', 'metadata', 'inference', 'index'"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a file with rules."""
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG)
    return path


def explain(config: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit status and the output of `gateway explain`."""
    result = CliRunner().invoke(command_line(["explain"]), ["explain", str(config), *arguments])
    return result.exit_code, result.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("--model", "fraud-2"), 0, "access: allow, rule fraud-infers"),
        (
            ("--model", "fraud-2", "--version", "2"),
            1,
            f"{NEAREST} version '2' does not match '', '1'",
        ),
        (
            ("--model", "fraud-2", "--elements", "11"),
            1,
            f"{NEAREST} 11 exceeds max_elements 10",
        ),
        (("--model", "fraud", "--operation", "index"), 1, "access: deny, rule no-control"),
        (("--operation", "metadata"), 0, "access: allow, rule fraud-infers"),
        (
            ("--operation", "switch"),
            1,
            f"{NEAREST} operation 'switch' does not match {OPERATION}; model '' does not match 'fraud*'",
        ),
        (("--operation", "health"), 0, "access: allow, no rule is needed"),
    ],
)
def test_explain_names_the_deciding_rule(
    config: Path, arguments: tuple[str, ...], status: int, line: str
) -> None:
    """The last line names the decision and its rule, and the status is 1 for a denied call."""
    found, output = explain(config, "--client", "fraud", *arguments)
    assert (status, line) == (found, output.splitlines()[-1])


def test_json_has_the_decision(config: Path) -> None:
    """Decision, rule and quotas are an object of their own, with the rule that is nearest."""
    status, output = explain(config, "--client", "fraud", "--model", "other", "-o", "json")
    assert status == 1
    assert json.loads(output)["access"] == {
        "decision": "deny",
        "rule": None,
        "quotas": [],
        "rehearsed": None,
        "nearest": "fraud-infers",
        "failed": "model 'other' does not match 'fraud*'",
    }


def test_anonymous_needs_a_rule_with_its_name(config: Path) -> None:
    """Only a rule that names `anonymous` in full allows calls without a credential."""
    arguments = ("--client", "anonymous", "--model", "m", "-o", "json", "--listener", "inner")
    found = json.loads(explain(config, *arguments)[1])
    assert found["access"]["decision"] == "deny"


def test_wrong_operations_and_listeners_exit_with_status_2(config: Path) -> None:
    """Names that do not exist are usage errors."""
    assert explain(config, "--client", "a", "--operation", "infer")[0] == 2
    assert explain(config, "--client", "a", "--model", "m", "--listener", "no")[0] == 2


def test_configuration_and_decision_know_the_same_operations() -> None:
    """Each operation of a call can stand in a rule."""
    assert {"all", *OPERATIONS} == set(CONFIGURED)


def test_rules_have_their_errors_with_line_and_column(config: Path) -> None:
    """An unknown operation, a limit of a rule that denies, and a name used twice are errors."""
    text = config.read_text()
    config.write_text(text.replace("[model-repository]", "[model-repositories]"))
    result = CliRunner().invoke(command_line(["validate"]), ["validate", str(config)])
    assert ":15:72: security.rules[1].operations[0]: expected" in result.stdout
    config.write_text(text.replace("no-control,", "fraud-infers,"))
    result = CliRunner().invoke(command_line(["validate"]), ["validate", str(config)])
    assert "duplicate name 'fraud-infers'" in result.stdout
    config.write_text(text.replace("effect: deny,", "effect: deny, max_bytes: 1MiB,"))
    result = CliRunner().invoke(command_line(["validate"]), ["validate", str(config)])
    assert "'max_bytes' is for rules with 'effect: allow'" in result.stdout
