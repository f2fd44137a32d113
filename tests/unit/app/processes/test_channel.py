"""What a supervisor and a worker say to one another, and that each hears when the other has gone."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app.processes.channel import (
    Message,
    WorkerChannel,
    WorkerSetup,
    open_channel,
    read_setup,
)
from gateway.app.worker_slot import WorkerSlot
from gateway.config.load import load_file, load_text

LOADED = load_text("version: 1\nlisteners: [{http: 8000}]\nworkers: 2\n", source="some.yaml")
EXAMPLES = sorted((Path(__file__).parents[4] / "config").glob("*.yaml"))
SETUP = WorkerSetup(LOADED, WorkerSlot(2, 2), should_log_warnings=True)


@pytest.fixture
async def ends() -> AsyncIterator[tuple[WorkerChannel, WorkerChannel]]:
    """Both ends of a line."""
    ours, theirs = socket.socketpair()
    channels = await open_channel(ours), await open_channel(theirs)
    yield channels
    for channel in channels:
        await channel.close()


async def test_messages_come_as_they_were_sent(ends: tuple[WorkerChannel, WorkerChannel]) -> None:
    """One after the other, whatever their size, both ways."""
    one, other = ends
    sent: list[Message] = [{"ask": "ready", "number": 1}, {"metrics": ["x" * 1_000_000]}, {}]
    for message in sent:
        one.send(message)
    assert sent == [await other.receive() for _ in sent]
    other.send({"ready": True})
    assert {"ready": True} == await one.receive()


async def test_the_end_of_the_line_is_heard(ends: tuple[WorkerChannel, WorkerChannel]) -> None:
    """Whoever is left hears that there is nothing more, and may go on speaking to nobody."""
    one, other = ends
    one.send({"last": True})
    await one.close()
    assert [{"last": True}, None, None] == [await other.receive() for _ in range(3)]
    other.send({"ready": True})
    await other.close()
    other.send({"ready": True})


async def test_orders_come_first() -> None:
    """A worker reads its orders, and what is said after them stays on the line."""
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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_any_configuration_can_be_ordered(path: Path) -> None:
    """Whatever stands in a file, a worker is told the same."""
    loaded = load_file(path, environment={})
    ours, theirs = socket.socketpair()
    supervisor = await open_channel(ours)
    supervisor.send_setup(WorkerSetup(loaded, WorkerSlot(1, 2), should_log_warnings=False))
    with theirs:
        assert loaded.config == read_setup(theirs).loaded.config
    await supervisor.close()


def test_a_supervisor_that_goes_before_its_orders() -> None:
    """A worker that is left alone at birth does not wait for ever."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(b"\0\0")
        ours.close()
        with pytest.raises(EOFError, match="the supervisor has exited"):
            read_setup(theirs)
