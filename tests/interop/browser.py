"""Chromium without a window, driven over the DevTools protocol: pages, keys, pictures, messages.

It records every message of the console and every request, so that a test can say that there was
none.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.integration.http_kit import eventually
from tests.interop.programs import program

PATIENCE_S = 60.0
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37}
_TEXTS = {"Enter": "\r"}


class Page:
    """One page of the browser.

    Attributes:
        messages: What the console showed, errors and refusals included.
        requests: The URLs that were requested.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.session = ""
        self.messages: list[str] = []
        self.requests: list[str] = []

    async def read(self) -> None:
        """Take in what the browser says, until it is closed."""
        async for message in self._socket:
            document = json.loads(message.data)
            if "id" in document:
                self._replies.pop(document["id"]).set_result(document)
            else:
                self._note(document["method"], document.get("params", {}))

    def _note(self, method: str, details: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.messages.append(str([each.get("value") for each in details["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.messages.append(str(details["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.messages.append(details["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.messages.append(f"dialog: {details['message']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        self._events[method].set()

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        reply = self._replies[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        await self._socket.send_str(json.dumps(message))
        async with asyncio.timeout(PATIENCE_S):
            document = await reply
        assert "error" not in document, document
        result: dict[str, Any] = document["result"]
        return result

    async def goto(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        loaded = self._events["Page.loadEventFired"]
        loaded.clear()
        await self.send("Page.navigate", url=url)
        async with asyncio.timeout(PATIENCE_S):
            await loaded.wait()

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        found = await self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self.evaluate(f"Boolean({condition})"):
                await self.evaluate("new Promise((done) => setTimeout(done, 20))")

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            named = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
            text = {"text": _TEXTS[key]} if key in _TEXTS else {}
            await self.send("Input.dispatchKeyEvent", type="keyDown", **named, **text)
            await self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    async def resize(self, width: int, height: int = 800, *, dark: bool = False) -> None:
        """Show the page in another size, and in light or dark colours."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        """Return what is shown as PNG."""
        found = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(found["data"])


@asynccontextmanager
async def opened(folder: Path, *, scripts: bool = True) -> AsyncIterator[Page]:
    """Start Chromium with an empty profile and yield its page."""
    flags = [*_FLAGS, f"--user-data-dir={folder / 'profile'}"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # its sandbox refuses root
    process = await asyncio.create_subprocess_exec(
        program("chromium"),
        *flags,
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session:
            url = await _address(folder / "profile" / "DevToolsActivePort", process)
            async with session.ws_connect(url, max_msg_size=0) as socket:
                page = Page(socket)
                reading = asyncio.create_task(page.read())
                try:
                    await _attach(page, scripts=scripts)
                    yield page
                finally:
                    reading.cancel()
                    await asyncio.wait({reading})
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _address(file: Path, process: asyncio.subprocess.Process) -> str:
    """Return the address of the DevTools protocol, whose port and path Chromium writes to *file*."""

    async def written() -> list[str]:
        assert process.returncode is None, f"Chromium exited with status {process.returncode}"
        lines = await asyncio.to_thread(_lines, file)
        return lines if len(lines) == 2 else []

    port, path = await eventually(written, PATIENCE_S)
    return f"ws://127.0.0.1:{port}{path}"


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def _attach(page: Page, *, scripts: bool) -> None:
    target = (await page.send("Target.createTarget", url="about:blank"))["targetId"]
    attached = await page.send("Target.attachToTarget", targetId=target, flatten=True)
    page.session = attached["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        await page.send(f"{domain}.enable")
    if not scripts:
        await page.send("Emulation.setScriptExecutionDisabled", value=True)
