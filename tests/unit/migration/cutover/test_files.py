"""The files of a cut-over: complete or absent, whenever the process or the machine dies."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.migration.cutover.files import CutoverFiles, UnusableState
from gateway.migration.cutover.states import Phase
from gateway.migration.cutover.steps import CutoverEvent, CutoverState

DIGEST = "ab" * 32
STATE = CutoverState(
    Phase.BAKING, 2, 5.0, epoch=7, attempt=3, calls=611, failures=1, detector=(0.5, 1e-9),
    decided_s=1_790_000_000.25, models="1", reason="größer",
)  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> CutoverFiles:
    return CutoverFiles(tmp_path / "cutover", "fraud")


def test_a_state_round_trips(files: CutoverFiles, tmp_path: Path) -> None:
    """The last state is read; only the owner can read its file, and no other file remains."""
    assert files.load(DIGEST) is None
    for epoch in (7, 8):
        files.save(DIGEST, replace(STATE, epoch=epoch))
    assert replace(STATE, epoch=8) == files.load(DIGEST)
    path = tmp_path / "cutover" / "fraud.json"
    assert [path] == list(path.parent.iterdir())
    assert (0o600, 0o700) == (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)


def test_a_truncated_state_is_detected(files: CutoverFiles, tmp_path: Path) -> None:
    """A file cut at any byte is the same state or an error."""
    files.save(DIGEST, STATE)
    path = tmp_path / "cutover" / "fraud.json"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size == len(whole) - 1:  # only the last line break is missing
            assert files.load(DIGEST) == STATE
            continue
        with pytest.raises(UnusableState, match="is damaged"):
            files.load(DIGEST)


def test_a_corrupted_state_is_detected(files: CutoverFiles, tmp_path: Path) -> None:
    """A changed byte is an error, or does not change the state."""
    files.save(DIGEST, STATE)
    path = tmp_path / "cutover" / "fraud.json"
    whole = path.read_bytes()
    for at in range(len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert STATE == files.load(DIGEST)
        except UnusableState:
            continue


def test_a_failed_write_keeps_the_last_state(
    files: CutoverFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk before the rename changes nothing."""
    files.save(DIGEST, STATE)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.save(DIGEST, replace(STATE, weight=100.0))
    assert files.load(DIGEST) == STATE


def test_a_state_of_another_plan_is_rejected(files: CutoverFiles) -> None:
    """The error has the state, so that the next epoch is higher."""
    files.save(DIGEST, STATE)
    with pytest.raises(UnusableState, match="is of another plan: hash abab") as caught:
        files.load("cd" * 32)
    assert STATE == caught.value.state


def test_a_state_of_a_later_format_is_rejected(files: CutoverFiles, tmp_path: Path) -> None:
    """An older gateway does not guess the meaning of a newer file."""
    files.save(DIGEST, STATE)
    path = tmp_path / "cutover" / "fraud.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(UnusableState, match="has format 2; expected 1"):
        files.load(DIGEST)


def test_events_survive_a_truncated_line(files: CutoverFiles, tmp_path: Path) -> None:
    """Events are returned in order, without damaged lines, up to the requested number."""
    assert [] == files.events()
    for number in range(3):
        files.append(CutoverEvent("cutover step", f"step {number}"), STATE, 1000.5 + number)
    path = tmp_path / "cutover" / "fraud.log.jsonl"
    path.write_bytes(path.read_bytes()[:-10] + b"\n[]\n")
    assert [(1_000_500_000, "step 0"), (1_001_500_000, "step 1")] == [
        (entry["at_us"], entry["text"]) for entry in files.events()
    ]
    assert ["step 1"] == [entry["text"] for entry in files.events(1)]
    assert {"event": "cutover step", "step": 2, "weight": 5.0, "epoch": 7}.items() <= (
        files.events()[0].items()
    )


def test_one_process_leads_at_a_time(tmp_path: Path) -> None:
    """The next one leads after the first one releases."""
    first, second = (CutoverFiles(tmp_path, "fraud") for _ in range(2))
    assert (True, True, False) == (first.try_lead(), first.try_lead(), second.try_lead())
    first.release()
    first.release()
    assert second.try_lead()
    second.release()


def test_migration_names_are_escaped_in_paths(tmp_path: Path) -> None:
    """Files of a name with a slash stay in the directory."""
    files = CutoverFiles(tmp_path / "cutover", "../up/fraud")
    files.save(DIGEST, STATE)
    assert ["..%2Fup%2Ffraud.json"] == [path.name for path in (tmp_path / "cutover").iterdir()]
