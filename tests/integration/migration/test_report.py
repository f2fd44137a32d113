"""The report on a replay of the demo's recording, by the command line."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.integration import cli_kit
from tests.integration.asking_kit import running, server_config, urls
from tests.integration.migration.digits_kit import digits
from tests.integration.migration.test_replay import DIFFERENT, SOME, capturing, classify

pytestmark = pytest.mark.timeout(300)

RULES = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
upstreams: {triton: {url: "oip+grpc://127.0.0.1:9001"}}
migrations:
  digits:
    compare: {outputs: {label: exact, probabilities: {top_k: 1}}}
    cutover: {guards: {mismatch: {below: 1%}, errors: {below: 50%}}}
"""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Return a recording of version 1, the results of a replay against version 2, and its table."""
    directory = tmp_path_factory.mktemp("report")
    rules = directory / "rules.yaml"
    rules.write_text(RULES)
    old, new = directory / "old", directory / "new"
    scans = digits()[::4]

    async def record() -> str:
        async with running(capturing(old)) as gateway:
            await classify(gateway, "trtis.http", "1", scans, SOME)
        async with running(server_config()) as gateway:
            arguments = (
                "--against",
                urls(gateway, "digits")["oip.grpc"],
                "--model",
                "digits=digits:2",
            )
            compare = ("--compare", f"{rules}#digits", "-o", str(new))
            done = await asyncio.to_thread(
                cli_kit.gateway, "replay", str(old), *arguments, *compare
            )
            assert done.returncode == 1, done.stderr
            return done.stdout

    return old, new, asyncio.run(record())


def test_replay_table_shows_the_guards(recordings: tuple[Path, Path, str]) -> None:
    """8 of 20 calls differ: the mismatch guard trips, and the errors guard holds."""
    table = recordings[2]
    assert "mismatch.below  trips" in table
    trips = (
        r"mismatch\.below +trips +[4-8] of the last [0-9]+, limit 1\.000%; tripped after call 16"
    )
    assert re.search(trips, table)
    assert "errors.below    holds" in table
    assert table.endswith("verdict: failed, mismatch.below trips\n")


def test_reports_are_reproducible(recordings: tuple[Path, Path, str], tmp_path: Path) -> None:
    """Page and Markdown have the verdict, the different rows and the guards."""
    old, new, _ = recordings
    rules = f"{old.parent / 'rules.yaml'}#digits"
    pages = []
    for number in range(2):
        html, text = tmp_path / f"{number}.html", tmp_path / f"{number}.md"
        done = cli_kit.gateway(
            "report", str(old), str(new), "-o", str(html), "--markdown", str(text),
            "--compare", rules, "--fail-if", "errors>0",
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (1, "verdict: failed, mismatch.below trips\n")
        pages.append((html.read_bytes(), text.read_text()))
    assert pages[0] == pages[1]
    page, markdown = pages[0]
    assert page.startswith(b"<!doctype html>")
    assert page.count(b"<svg") > 10
    worst = markdown.partition("## Worst samples")[2].partition("## Random samples")[0]
    assert sorted(row for row in SOME if f"request row-{row}." in worst) == DIFFERENT
    for line in (
        "Verdict: failed, mismatch.below trips.",
        "| mismatch.below | trips | ",
        "| errors\\>0 | holds |",
        "| label | 20 | 8 | 40.00% |",
        "| 127.0.0.1 | - | trtis.http | digits:1 | 20 | 0 | 20 | 8 | 40.00% |",
        "| rule of probabilities | top\\_k 1 |",
    ):
        assert line in markdown


def test_report_rejects_wrong_usage(recordings: tuple[Path, Path, str], tmp_path: Path) -> None:
    """A report needs a writable output file and two recordings."""
    old, new, _ = recordings
    nothing = cli_kit.gateway("report", str(old), str(new))
    assert (nothing.returncode, "nothing to write" in nothing.stderr) == (2, True)
    missing = cli_kit.gateway("report", str(old), str(tmp_path / "none"), "--markdown", "-")
    assert (missing.returncode, "no capture there" in missing.stderr) == (2, True)
    report = cli_kit.gateway("report", str(old), str(old), "--markdown", "-")
    assert (report.returncode, report.stdout.startswith("# Migration report")) == (0, True)
    target = str(tmp_path / "none" / "report.html")
    unwritable = cli_kit.gateway("report", str(old), str(old), "-o", target)
    assert (unwritable.returncode, "cannot write" in unwritable.stderr) == (1, True)
