"""Names looked up by the system: one thread for each name, shared, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.concurrency.own_thread import on_own_thread
from gateway.transports.net import look_up as module
from gateway.transports.net.look_up import look_up, require_known

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.9", 0))]


class NameServer:
    """Stands for the system: it replies when a test says so."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.replies = threading.Event()
        self.error: OSError | None = None
        self.threads: list[threading.Thread] = []

    def __call__(self, host: str, *_args: Any, **_options: Any) -> list[Any]:
        self.questions.append(host)
        self.threads.append(threading.current_thread())
        assert self.replies.wait(30)
        if self.error is not None:
            raise self.error
        return FOUND


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """Replace the system's look-up."""
    found = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(module, "_LOOK_UPS", {})
    yield found
    found.replies.set()
    for thread in found.threads:
        thread.join()


async def test_callers_share_one_look_up(server: NameServer) -> None:
    """Ten who ask at once, and some who give up, cost one thread, which is no other's."""
    asking = [asyncio.ensure_future(look_up("shared.test")) for _ in range(10)]
    await asyncio.sleep(0)
    for each in asking[:4]:
        each.cancel()
    await asyncio.sleep(0)
    server.replies.set()
    assert [["127.0.0.9"]] * 6 == await asyncio.gather(*asking[4:])
    assert ["shared.test"] == server.questions
    assert server.threads[0].daemon


async def test_a_silent_name_server_delays_no_other_look_up(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time everyone gets an error at once, without another look-up; others go on."""
    monkeypatch.setattr(module, "_WAIT_S", 0.05)
    text = "the name server has not replied about 'silent.test' within 0.05 s"
    for _ in range(5):
        with pytest.raises(OSError, match=text):
            await look_up("silent.test")
    assert ["silent.test"] == server.questions
    assert ["::1"] == await look_up("::1")
    monkeypatch.setattr(module, "_WAIT_S", 60.0)
    other = asyncio.ensure_future(look_up("other.test"))
    await asyncio.sleep(0)
    server.replies.set()
    assert ["127.0.0.9"] == await other


async def test_a_late_reply_is_kept_for_the_next_one(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that takes longer than anybody waits is of use all the same, once."""
    monkeypatch.setattr(module, "_WAIT_S", 0.05)
    with pytest.raises(OSError, match="has not replied"):
        await look_up("slow.test")
    monkeypatch.setattr(module, "_WAIT_S", 60.0)
    server.replies.set()
    server.threads[0].join()
    assert ["127.0.0.9"] == await look_up("slow.test")
    assert ["slow.test"] == server.questions
    await look_up("slow.test")
    assert ["slow.test"] * 2 == server.questions


async def test_an_unknown_name_is_looked_up_again(server: NameServer) -> None:
    """Each one who waits gets an error of its own, and the next one another look-up."""
    server.error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    asking = [asyncio.ensure_future(look_up("nobody.test")) for _ in range(2)]
    await asyncio.sleep(0)
    server.replies.set()
    first, second = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(first, socket.gaierror)
    assert isinstance(second, socket.gaierror)
    assert first is not second
    with pytest.raises(socket.gaierror, match="not known"):
        await look_up("nobody.test")
    assert 2 == len(server.questions)


async def test_an_invalid_name_is_an_error() -> None:
    """A name that the DNS cannot have is no defect of the gateway."""
    with pytest.raises(OSError, match="is not a valid name"):
        await look_up("a" * 80 + ".test")


async def test_a_thread_waits_for_its_timeout(server: NameServer) -> None:
    """Code of threads shares the look-ups, and has a limit of its own."""
    with pytest.raises(OSError, match=r"within 0\.01 s"):
        await on_own_thread(require_known, "silent.test", 0.01)
    await on_own_thread(require_known, "127.0.0.1", 0.01)
    server.replies.set()
    assert ["127.0.0.9"] == await look_up("silent.test")
    assert ["silent.test"] == server.questions
