"""The output of commands: texts, tables, JSON and errors."""

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


def test_tables_align_columns() -> None:
    """Text is aligned to the left, numbers to the right; lines have no trailing blanks."""
    expected = "name    bytes  said\na           5  yes\nlonger    123"
    assert expected == format_table(
        ("name", "bytes", "said"), [("a", "5", "yes"), ("longer", "123", "")], right=(1,)
    )


def test_a_terminal_broke_names_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last column continues on the next line, word by word, and a name stays whole."""
    rows = [("r-1", "upstream my-upstream: endpoint model-server-1:8001: cannot connect")]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    lines = format_table(("route", "reason"), rows).splitlines()
    assert lines == [
        "route  reason",
        "r-1    upstream my-upstream: endpoint",
        "       model-server-1:8001: cannot",
        "       connect",
    ]
    monkeypatch.setenv("COLUMNS", "20")
    assert 2 == len(format_table(("route", "reason"), rows).splitlines())


def test_texts_of_clients_control_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """In tables, lines and JSON a reversed or controlling text is escaped."""
    hostile = "\u202efdp.exe\x1b[2J\nverdict: passed"
    table = format_table(("output",), [(hostile,)])
    assert r"\u202efdp.exe\x1b[2J\nverdict: passed" in table
    print_text(table)
    print_note(hostile)
    print_json({"name": hostile})
    shown = capsys.readouterr()
    assert not any(each in shown.out + shown.err for each in ("\u202e", "\x1b"))
    assert {"name": hostile} == json.loads(shown.out.removeprefix(table + "\n"))


def test_data_and_notes_use_different_streams(capsys: pytest.CaptureFixture[str]) -> None:
    """Data is on standard output, notes are on standard error."""
    print_text("data")
    print_note("remark")
    assert ("data\n", "remark\n") == tuple(capsys.readouterr())


def test_bytes_are_written_to_a_file_or_standard_output(
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
    """Text of any language is preserved."""
    print_json({"text": "Bäckerei", "numbers": [1, 0.5]})
    assert {"text": "Bäckerei", "numbers": [1, 0.5]} == json.loads(capsys.readouterr().out)


def test_fail_prints_one_line_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    """The error is on standard error, and the command ends with its status."""
    with pytest.raises(typer.Exit) as raised:
        fail("no such thing", WRONG_USAGE)
    assert raised.value.exit_code == 2
    assert ("", "gateway: no such thing\n") == tuple(capsys.readouterr())
