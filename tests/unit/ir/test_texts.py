"""Texts of clients on a terminal and in JSON: nothing is reversed, hidden or controls anything."""

from __future__ import annotations

import json

import pytest

from gateway.ir.texts import json_without_hidden, printable, without_hidden

HOSTILE = "a\x1b]0;x\x07\u202egnp.exe\u2066\u200b\x9b2J\r\U000e0041z"


@pytest.mark.parametrize("escape", [printable, without_hidden])
def test_controls_and_reversals_are_escaped(escape: object) -> None:
    """Every other character stays as it is."""
    found = escape(HOSTILE)  # type: ignore[operator]
    assert found == r"a\x1b]0;x\x07\u202egnp.exe\u2066\u200b\x9b2J\r\U000e0041z"
    assert found.isprintable()
    assert "é 統計 ░▒▓" == escape("é 統計 ░▒▓")  # type: ignore[operator]


def test_lines_and_colours_of_commands_stay() -> None:
    """A cell of a table has neither."""
    assert "a\tb\n\x1b[31mc\x1b[0m" == without_hidden("a\tb\n\x1b[31mc\x1b[0m")
    assert r"a\tb\n\x1b[31mc" == printable("a\tb\n\x1b[31mc")


def test_json_keeps_its_values() -> None:
    """What is escaped is read as it was."""
    text = json_without_hidden(json.dumps({"id": HOSTILE}, indent=2, ensure_ascii=False))
    assert {"id": HOSTILE} == json.loads(text)
    assert all(each.isprintable() or each == "\n" for each in text)
