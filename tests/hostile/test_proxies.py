"""The gateway behind nginx and HAProxy: no client gets a response to another's request.

Attackers send requests that may be read in two ways, each followed by a request with a mark. Honest
clients send requests over the same proxy, which shares its connections to the gateway. Each must
get the response with its own mark, once, and no client a response to a hidden request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest

from tests.hostile.judge import Patient
from tests.hostile.proxies import FRONTS, front
from tests.hostile.smuggling import CORPUS
from tests.hostile.test_http_framing import CASES
from tests.hostile.wire import GOOD_BODY, Address, post

# Not tried again: once is enough to have given somebody another's answer.
pytestmark = [pytest.mark.hostile, pytest.mark.timeout(300), pytest.mark.flaky(reruns=0)]

ATTACKERS = 12
HONEST = 4
AFTERWARDS = 15
"""How many answers every honest client still gets when the last attack is over."""
_LISTEN_S = 0.7
_PATIENCE_S = 30.0
_MARK = re.compile(rb'"id": ?"([^"]*)"')
_FRAMING = {name: data for name, data in CASES.items() if len(data) < 10_000}


@pytest.fixture(scope="module", params=FRONTS)
def proxy(
    patient: Patient, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Address]:
    """Run a proxy before the gateway."""
    upstream = patient.gateway.address("main.http")
    with front(request.param, upstream, tmp_path_factory.mktemp("proxy")) as address:
        yield address


def marked(mark: str) -> bytes:
    """Write a good request whose response has its mark."""
    return post(json.dumps({**json.loads(GOOD_BODY), "id": mark}).encode())


class Honest:
    """A client with one connection that sends requests without a pause."""

    def __init__(self, address: Address, name: str) -> None:
        self._address = address
        self._name = name
        self.answered = 0
        self.lost = 0
        self.remaining = AFTERWARDS

    async def run(self, stop: asyncio.Event) -> None:
        """Send until stopped, and a little longer; fail on a response of another client.

        A request hidden in the last attack may still cost a request, so responses are counted.
        """
        numbers = count()
        while self.remaining:
            reader, writer = await asyncio.open_connection(*self._address)
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while self.remaining:
                    is_afterwards = stop.is_set()
                    mark = f"{self._name}-{next(numbers)}"
                    writer.write(marked(mark))
                    async with asyncio.timeout(_PATIENCE_S):
                        self.remaining -= await self._is_served(reader, mark) and is_afterwards
            writer.close()

    async def _is_served(self, reader: asyncio.StreamReader, mark: str) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"\r\ncontent-length: *([0-9]+)\r\n", head, re.IGNORECASE)
        if size is None:  # a proxy's own word that it lost the gateway's
            assert head.startswith((b"HTTP/1.1 502", b"HTTP/1.1 503")), head
            self.lost += 1
            raise ConnectionError
        body = await reader.readexactly(int(size[1]))
        if head.startswith((b"HTTP/1.1 502", b"HTTP/1.1 503")):
            self.lost += 1
            return False
        assert head.startswith(b"HTTP/1.1 200"), (head, body)
        assert [mark.encode()] == _MARK.findall(body), (mark, body)
        self.answered += 1
        return True


async def attack(address: Address, name: str, data: bytes, mark: bytes) -> None:
    """Send *data*, then a marked request; fail on a response of another connection."""
    reader, writer = await asyncio.open_connection(*address)
    received = b""
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(_LISTEN_S):
            writer.write(data + mark)
            while piece := await reader.read(65_536):
                received += piece
    writer.close()
    own = [b"good", b"hidden-" + name.encode(), b"mark-" + name.encode()]
    found = _MARK.findall(received)
    assert [] == [each for each in found if each not in own], (name, received)
    assert sorted(found, key=own.index) == found, (name, found)
    assert len(found) == len(set(found)), (name, found)


async def besiege(address: Address, attacks: dict[str, bytes]) -> list[Honest]:
    """Send all *attacks*, a few at a time, while honest clients send requests."""
    stop = asyncio.Event()
    honest = [Honest(address, f"honest-{number}") for number in range(HONEST)]
    queue = list(attacks.items())

    async def attackers() -> None:
        while queue:
            name, data = queue.pop()
            await attack(address, name, data, marked(f"mark-{name}"))

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(each.run(stop)) for each in honest]
        try:
            async with asyncio.TaskGroup() as attacking:
                for _ in range(ATTACKERS):
                    attacking.create_task(attackers())
        finally:
            stop.set()
        _, late = await asyncio.wait(asking, timeout=2 * _PATIENCE_S)
        for task in late:
            task.cancel()
    return honest


def assert_served(honest: list[Honest]) -> None:
    """Each client is served after the attacks, and has lost few requests during them."""
    assert [0] * HONEST == [each.remaining for each in honest]
    assert all(each.lost < each.answered for each in honest)


@pytest.mark.parametrize("kind", CORPUS)
async def test_hidden_requests_reach_no_other_client(proxy: Address, kind: str) -> None:
    """Every honest client gets only its own responses, and the attacker none of theirs."""
    attacks = {name: smuggles(marked(f"hidden-{name}")) for name, smuggles in CORPUS[kind].items()}
    honest = await besiege(proxy, attacks)
    assert_served(honest)


async def test_invalid_framing_reaches_no_other_client(proxy: Address) -> None:
    """The same holds for all requests that are rejected without a proxy."""
    attacks = {name: data + marked(f"hidden-{name}") for name, data in _FRAMING.items()}
    honest = await besiege(proxy, attacks)
    assert_served(honest)
