"""LimitSequences: how many sequences a client may have open."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import CallSequence, Context, ModelRef, Origin
from gateway.ir.errors import (
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    NotSent,
    Overloaded,
    Unavailable,
)
from gateway.policies.limits.sequences import LimitSequences
from tests.fakes import FakeClock, FakeStream, ScriptedService

REPLY = InferResponse(model=ModelRef("m"), outputs=())


class Limited:
    """A layer with a limit of two, whose calls come from `client`."""

    def __init__(self, *script: Any, header: str = "") -> None:
        self.service = ScriptedService(*script, always=REPLY)
        self.clock = FakeClock()
        self.client = "a"
        self.layer = LimitSequences(
            self.service, 2, client=lambda: self.client, header=header, idle_s=60, clock=self.clock
        )

    async def send(
        self, number: int, model: str = "m", header: tuple[str, str] = ("x", ""), **members: bool
    ) -> Any:
        return await self.layer(request(number, model, header, **members))

    async def is_full(self, **where: Any) -> bool:
        """Return whether no new sequence may begin."""
        try:
            await self.send(99, start=True, **where)
        except Overloaded:
            return True
        await self.send(99, end=True, **where)
        return False


def request(
    number: int, model: str = "m", header: tuple[str, str] = ("x", ""), **members: bool
) -> InferRequest:
    return InferRequest(
        model=ModelRef(model),
        sequence=CallSequence(number, **members),
        context=Context(metadata=(header,)),
    )


async def test_open_sequences_of_a_client_are_limited() -> None:
    """The limit applies by client and model, and open sequences continue."""
    limited = Limited()
    await limited.send(1, start=True)
    await limited.send(2)  # its start was before the gateway's
    with pytest.raises(Overloaded, match="the client has 2 open sequences") as caught:
        await limited.send(3, start=True)
    assert "sequences_per_client" == caught.value.limit
    for number in (1, 2, 1):
        await limited.send(number)
    assert not await limited.is_full(model="other")
    await limited.layer(InferRequest(model=ModelRef("m")))
    limited.client = "b"
    assert not await limited.is_full()


async def test_end_of_a_sequence_releases_its_slot() -> None:
    """A new sequence may start after the reply to the last request."""
    limited = Limited()
    for number in (1, 2):
        await limited.send(number, start=True)
    assert await limited.is_full()
    await limited.send(2, end=True)
    assert not await limited.is_full()


async def test_idle_sequence_expires() -> None:
    """Each request restarts the idle timeout of its sequence."""
    limited = Limited()
    for number in (1, 2):
        await limited.send(number, start=True)
    limited.clock.advance(59)
    await limited.send(1)
    limited.clock.advance(1)
    assert not await limited.is_full()
    await limited.send(3, start=True)
    assert await limited.is_full()


@pytest.mark.parametrize(
    ("error", "opened"),
    [
        (InvalidRequest("no", origin=Origin("oip", None)), False),
        (NotSent("down"), False),
        (Unavailable("reset"), True),
        (DeadlineExceeded("late"), True),
    ],
)
async def test_failed_start_counts_unless_no_sequence_was_opened(
    error: GatewayError, opened: bool
) -> None:
    """A start counts if the server may have opened the sequence."""
    limited = Limited(REPLY, error)
    await limited.send(1, start=True)
    with pytest.raises(type(error)):
        await limited.send(2, start=True)
    assert opened == await limited.is_full()


async def test_failed_end_does_not_release_the_slot() -> None:
    """The server may still have the sequence open."""
    limited = Limited(REPLY, REPLY, DeadlineExceeded("late"))
    for number in (1, 2):
        await limited.send(number, start=True)
    with pytest.raises(DeadlineExceeded):
        await limited.send(2, end=True)
    assert await limited.is_full()


async def test_stream_ends_its_sequence_when_it_closes() -> None:
    """The slot stays in use until the stream is closed."""
    limited = Limited(REPLY, REPLY, FakeStream([REPLY]))
    for number in (1, 2):
        await limited.send(number, start=True)
    last = request(2, end=True)
    items = await limited.layer(StreamInferRequest(model=last.model, request=last))
    assert await limited.is_full()
    await close_stream(items)
    assert not await limited.is_full()


async def test_header_may_identify_clients() -> None:
    """Clients without the header are counted by address."""
    limited = Limited(header="x-user")
    for number in (1, 2):
        await limited.send(number, start=True, header=("X-User", "ann"))
    assert await limited.is_full(header=("x-user", "ann"))
    assert not await limited.is_full(header=("x-user", "bob"))
    assert not await limited.is_full()


async def test_clients_without_sequences_use_no_memory() -> None:
    """No state remains for clients without open sequences."""
    limited = Limited()
    for number in range(100):
        limited.client = str(number)
        await limited.send(1, start=True)
        await limited.send(1, end=True)
    assert (0, 0) == (len(limited.layer._open), len(limited.layer._counts))
