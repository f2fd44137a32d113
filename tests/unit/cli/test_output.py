"""What verbs print, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from gateway.cli.output import (
    WRONG_USAGE,
    fail,
    format_table,
    print_json,
    print_note,
    print_text,
    write_bytes,
)


def test_aligns_columns() -> None:
    """Text is aligned to the left, numbers to the right; no line ends in blanks."""
    expected = "name    bytes  said\na           5  yes\nlonger    123"
    assert expected == format_table(
        ("name", "bytes", "said"), [("a", "5", "yes"), ("longer", "123", "")], right=(1,)
    )


def test_data_and_remarks_go_different_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """Data is on standard output, a remark on standard error."""
    print_text("data")
    print_note("remark")
    assert ("data\n", "remark\n") == tuple(capsys.readouterr())


def test_bytes_go_to_a_file_or_to_standard_output(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A file that cannot be written ends the command with the reason."""
    write_bytes(tmp_path / "file", b"\xff")
    write_bytes(None, b"\xfe")
    with pytest.raises(typer.Exit):
        write_bytes(tmp_path, b"")
    reason = f"gateway: cannot write {tmp_path}: Is a directory\n".encode()
    assert b"\xff" == (tmp_path / "file").read_bytes()
    assert (b"\xfe", reason) == tuple(capsysbinary.readouterr())


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON data can be read back, text of any language included."""
    print_json({"text": "Bäckerei", "numbers": [1, 0.5]})
    assert {"text": "Bäckerei", "numbers": [1, 0.5]} == json.loads(capsys.readouterr().out)


def test_failing_says_one_line_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """An error goes to standard error and ends the command with its status."""
    with pytest.raises(typer.Exit) as raised:
        fail("no such thing", WRONG_USAGE)
    assert raised.value.exit_code == 2
    assert ("", "gateway: no such thing\n") == tuple(capsys.readouterr())
