"""The pages of a real migration in headless Chromium, and the pictures of them in the documentation.

`WRITE_PICTURES=1` replaces the files in docs/images.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.interop.browser import Page, opened

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

IMAGES = Path(__file__).parents[3] / "docs" / "images"
WIDTH, HEIGHT = 1000, 720
_MOST_BYTES = 150_000
_PATIENCE_S = 240.0


@asynccontextmanager
async def kept_demo() -> AsyncIterator[tuple[str, Path]]:
    """Run `gateway demo --migrate --keep`, and yield the page's URL and the report's path."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "demo", "--migrate", "--keep"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    output = ""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while "Ctrl-C stops" not in output:
                line = (await process.stderr.readline()).decode()
                assert line, f"the demo ended: {output}"
                output += line
        page, report = (
            re.search(rf"The {name}: (\S+)", output) for name in ("migration", "report")
        )
        assert page is not None
        assert report is not None
        yield page[1], Path(report[1])
    finally:
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            await process.communicate()


async def picture(page: Page, name: str) -> None:
    """Take a picture and check it; keep it if that is wanted."""
    data = await page.picture()
    assert (WIDTH, HEIGHT) == struct.unpack(">II", data[16:24])
    assert len(data) < _MOST_BYTES, f"{name} has {len(data)} bytes"
    if os.environ.get("WRITE_PICTURES"):
        await asyncio.to_thread((IMAGES / name).write_bytes, data)


async def test_a_real_migration_is_shown(tmp_path: Path) -> None:
    """Page, sample and report show the migration of the demo, and the console stays empty."""
    async with kept_demo() as (url, report), opened(tmp_path) as page:
        await page.resize(WIDTH, HEIGHT)
        await page.goto(url)
        await page.wait_for("document.getElementById('live-state').textContent === 'live'")
        text = await page.evaluate("document.querySelector('main').innerText")
        for expected in ("rolled_back", "cutover tripped", "probabilities", "Resume"):
            assert expected in text
        await picture(page, "page-migration.png")
        sample = (
            "[...document.querySelectorAll('#samples tr')].find((row) =>"
            " row.textContent.includes('mismatch')).querySelector('a').href"
        )
        await page.goto(await page.evaluate(sample))
        await page.wait_for("document.getElementById('drawing').dataset.ms")
        await page.evaluate(
            "(() => { const select = document.getElementById('tensor');"
            " select.value = 'output probabilities';"
            " select.dispatchEvent(new Event('change', { bubbles: true }));"
            " document.querySelector('input[value=line]').click(); })()"
        )
        await picture(page, "page-sample.png")
        facts = await page.evaluate("document.getElementById('tensor-facts').textContent")
        assert re.match(r"difference of \w+: \w+\[1,(1|10)\], (1|10) elements", facts), facts
        await page.goto(url.partition("/ui/")[0] + "/ui/")
        await picture(page, "page-overview.png")
        await page.goto(report.as_uri())
        await picture(page, "report.png")
        assert [] == page.messages
