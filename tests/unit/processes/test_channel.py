"""The channel between supervisor and worker: messages, setup, and the exit of either side."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.config.load import load_file, load_text
from gateway.processes.channel import (
    Message,
    WorkerChannel,
    WorkerSetup,
    open_channel,
    read_setup,
)
from gateway.processes.worker_slot import WorkerSlot
from tests.unit.config.test_examples import EACH_EXAMPLE

LOADED = load_text("version: 1\nlisteners: [{http: 8000}]\nworkers: 2\n", source="some.yaml")
SETUP = WorkerSetup(LOADED, WorkerSlot(2, 2), should_log_warnings=True)


@pytest.fixture
async def ends() -> AsyncIterator[tuple[WorkerChannel, WorkerChannel]]:
    """Both ends of a line."""
    ours, theirs = socket.socketpair()
    channels = await open_channel(ours), await open_channel(theirs)
    yield channels
    for channel in channels:
        await channel.close()


async def test_messages_arrive_in_order_and_unchanged(
    ends: tuple[WorkerChannel, WorkerChannel],
) -> None:
    """Messages of any size arrive in both directions."""
    one, other = ends
    sent: list[Message] = [{"ask": "ready", "number": 1}, {"metrics": ["x" * 1_000_000]}, {}]
    for message in sent:
        one.send(message)
    assert sent == [await other.receive() for _ in sent]
    other.send({"ready": True})
    assert {"ready": True} == await one.receive()


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"number": 1, "metrics": [], "counts": None, "status": {}},
        {"metrics": [["m", "", "counter", [["m", {"a": "b"}, 1.0]] * 3000], [], ["n", [[]] * 5]]},
        {"status": {"routes": [{"name": str(each)} for each in range(3000)], "deep": {"er": {
            str(each): [{"models": list(range(2000))}] for each in range(3)}}}},
        {"text": ["x" * 300_000, "", "y"], "last": True},
    ],
)  # fmt: skip
async def test_a_large_message_arrives_unchanged_in_small_parts(
    ends: tuple[WorkerChannel, WorkerChannel], message: Message
) -> None:
    """Lists may be iterators, and parts of two messages may arrive by turns."""
    one, other = ends
    lazy = {key: iter(each) if isinstance(each, list) else each for key, each in message.items()}
    sending = [asyncio.create_task(one.send_large(each)) for each in (lazy, {"second": [1]})]
    found = [await other.receive() for _ in sending]
    assert message in found
    assert {"second": [1]} in found
    await asyncio.gather(*sending)


async def test_a_large_message_that_is_abandoned_leaves_nothing(
    ends: tuple[WorkerChannel, WorkerChannel],
) -> None:
    """Its reader gets the next message."""
    one, other = ends

    def rows() -> Iterator[int]:
        yield from range(3000)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        await one.send_large({"rows": rows()})
    one.send({"next": True})
    assert {"next": True} == await other.receive()


async def test_a_closed_peer_ends_receive_with_none(
    ends: tuple[WorkerChannel, WorkerChannel],
) -> None:
    """Later messages to the closed peer are discarded without an error."""
    one, other = ends
    one.send({"last": True})
    await one.close()
    assert [{"last": True}, None, None] == [await other.receive() for _ in range(3)]
    other.send({"ready": True})
    await other.close()
    other.send({"ready": True})


async def test_the_setup_precedes_other_messages() -> None:
    """A worker reads its setup; later messages stay on the channel."""
    ours, theirs = socket.socketpair()
    supervisor = await open_channel(ours)
    supervisor.send_setup(SETUP)
    supervisor.send({"ask": "ready"})
    found = read_setup(theirs)
    assert (SETUP.slot, True, LOADED.config) == (
        found.slot,
        found.should_log_warnings,
        found.loaded.config,
    )
    assert ("some.yaml", LOADED.directory) == (found.loaded.source, found.loaded.directory)
    worker = await open_channel(theirs)
    assert {"ask": "ready"} == await worker.receive()
    await worker.close()
    await supervisor.close()


@pytest.mark.parametrize("path", EACH_EXAMPLE)
async def test_a_setup_carries_every_example_configuration(path: Path) -> None:
    """The worker receives the configuration of the supervisor unchanged."""
    loaded = load_file(path, environment={})
    ours, theirs = socket.socketpair()
    supervisor = await open_channel(ours)
    supervisor.send_setup(WorkerSetup(loaded, WorkerSlot(1, 2), should_log_warnings=False))
    with theirs:
        assert loaded.config == read_setup(theirs).loaded.config
    await supervisor.close()


def test_a_supervisor_exit_before_the_setup_raises() -> None:
    """A worker without a setup does not wait forever."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(b"\0\0")
        ours.close()
        with pytest.raises(EOFError, match="the supervisor has exited"):
            read_setup(theirs)
