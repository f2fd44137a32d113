"""Pages of the documentation in headless Chromium: they load, search, and ask no other host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.test_site import site
from tests.interop.browser import opened

__all__ = ["site"]  # a fixture
PAGES = ("index", "reference/cli", "reference/metrics", "scale-out", "deployment", "ARCHITECTURE")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Write nothing."""


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def test_pages_request_only_their_own_host(address: str, tmp_path: Path) -> None:
    """Neither a page nor its scripts, also those of the search, which finds a word."""
    async with opened(tmp_path) as page:
        for name in PAGES:
            await page.goto(f"http://{address}/{name}.html")
            await page.evaluate("new Promise((done) => setTimeout(done, 200))")
        await page.goto(f"http://{address}/index.html?q=residency")
        await page.wait_for("document.querySelector('.md-search-result__item a')")
    hosts = {
        urlsplit(url).netloc for url in page.requests if not url.startswith(("data:", "blob:"))
    }
    assert {address} == hosts
    assert [] == page.messages
