"""`gateway keys`: adds, lists, revokes and rotates the keys of a file of hashes."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.access.key_file import load_key_file
from gateway.cli.commands import command_line

IMPORTED = "an-existing-key-of-26-char"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a key file that does not exist yet."""
    return tmp_path / "keys.yaml"


def keys(file: Path, *words: str, stdin: str = "", status: int = 0) -> str:
    """Run a command about the file; return what it prints to standard output."""
    result = CliRunner().invoke(
        command_line(["keys"]), ["keys", *words, "--file", str(file)], input=stdin
    )
    assert (status, words) == (result.exit_code, words), result.output
    return result.stdout


def states(file: Path) -> dict[str, str]:
    """Return the state of each key."""
    return {each["id"]: each["state"] for each in json.loads(keys(file, "list", "-o", "json"))}


def test_a_new_key_is_printed_alone_and_once(file: Path) -> None:
    """The file has its hash, and only its owner reads it."""
    key = keys(file, "add", "fraud", "--expires", "90d", "--id", "k1", "--note", "first").strip()
    assert key.startswith("tg_")
    assert len(key) >= 35
    assert key not in file.read_text()
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    found = load_key_file(file).find(key)
    assert found is not None
    assert ("k1", "fraud", "first") == (found.id, found.client, found.note)
    assert found.expires is not None
    assert timedelta(days=90) == found.expires - found.created
    assert "first" not in keys(file, "list")
    assert found.digest.hex() not in keys(file, "list")


def test_a_key_is_imported_from_standard_input(file: Path) -> None:
    """Nothing is printed, and a short one is refused."""
    assert "" == keys(file, "add", "fraud", "--stdin", stdin=f"{IMPORTED}\n")
    assert load_key_file(file).find(IMPORTED) is not None
    before = file.read_text()
    keys(file, "add", "fraud", "--stdin", stdin="short\n", status=1)
    keys(file, "add", "fraud", "--stdin", stdin=f"{IMPORTED}\n", status=1)
    keys(file, "add", "anonymous", status=1)
    assert before == file.read_text()


def test_keys_are_revoked_and_rotated(file: Path) -> None:
    """A rotation adds a key, and lets the others of the client end after the overlap."""
    old = keys(file, "add", "fraud", "--id", "old").strip()
    keys(file, "add", "images", "--id", "other")
    keys(file, "add", "fraud", "--id", "gone")
    keys(file, "revoke", "gone")
    new = keys(file, "rotate", "fraud", "--overlap", "12h").strip()
    found = load_key_file(file)
    entries = {each.id: each for each in found.keys}
    now = datetime.now(UTC)
    ends = entries["old"].expires
    assert ends is not None
    assert timedelta(hours=11) < ends - now <= timedelta(hours=12)
    assert entries["other"].expires is None
    latest = found.find(new)
    assert latest is not None
    assert (None, "fraud") == (latest.expires, latest.client)
    assert old != new
    expected = {"old": "active", "other": "active", "gone": "revoked", latest.id: "active"}
    assert expected == states(file)
    keys(file, "revoke", "nobody", status=1)


def test_a_configuration_names_the_file(tmp_path: Path) -> None:
    """Its path is relative to the configuration; one of the two options is needed."""
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "version: 1\nlisteners: [{http: 8000}]\nsecurity: {keys: {file: keys.yaml}}\n"
    )
    run, app = CliRunner(), command_line(["keys"])
    words = ["keys", "add", "fraud"]
    assert 0 == run.invoke(app, [*words, "-c", str(config)]).exit_code
    assert [each.client for each in load_key_file(tmp_path / "keys.yaml").keys] == ["fraud"]
    assert 2 == run.invoke(app, words).exit_code
    assert 2 == run.invoke(app, [*words, "-c", "a", "--file", "b"]).exit_code
    assert 2 == run.invoke(app, [*words, "--file", "b", "--expires", "soon"]).exit_code
