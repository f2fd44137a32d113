"""The outbox: it never waits, and counts every call that it cannot send or that is not confirmed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.ir.calls import InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor
from gateway.migration.captures.sampling import CaptureOptions, CaptureSampler
from gateway.migration.mirror.outbox import Outbox
from gateway.shadow.packets import PACKET_BYTES, PacketReader, socket_pair
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import RecordedCall, record_of
from gateway.shadow.records.transfer import (
    Confirmation,
    SampleMessage,
    decode_message,
    encode_confirmation,
)
from tests.fakes import settle
from tests.simulation.virtual_time import elapse, in_virtual_time
from tests.unit.shadow.kit import FULL, recordable


class Shadow:
    """The other end of the socket, which reads and confirms when the test calls it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = PacketReader()
        self.epoch = self.packets = 0
        self.numbers: list[int] = []

    def read(self) -> list[SampleMessage]:
        """Return all messages that the socket holds."""
        found: list[SampleMessage] = []
        while True:
            try:
                packet = self._sock.recv(PACKET_BYTES)
            except BlockingIOError:
                return found
            self.packets += 1
            for epoch, number, view in self._reader.receive(packet):
                self.epoch = epoch
                self.numbers.append(number)
                found.append(decode_message(view))

    def confirm(self, **values: Any) -> None:
        self._sock.send(encode_confirmation(Confirmation(self.epoch, **values)))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Shadow]]:
    ours, theirs = socket_pair()
    yield ours, Shadow(theirs)
    ours.close()
    theirs.close()


def sampler(**options: Any) -> CaptureSampler:
    return CaptureSampler(CaptureOptions(directory=Path("unused"), privacy=FULL, **options))


def sample(made: CaptureSampler, number: int = 0) -> RecordedCall:
    assert made.samples("fraud", f"r{number}")
    return record_of(recordable(number), FULL, None)


def large(made: CaptureSampler, size: int) -> RecordedCall:
    assert made.samples("fraud", "r")
    tensor = Tensor("y", Datatype.UINT8, (size,), RawData(memoryview(bytes(size))))
    reply = InferResponse(model=ModelRef("m"), outputs=(tensor,))
    return record_of(recordable(items=[(1, reply)]), FULL, None)


async def test_calls_arrive_with_their_elements(ends: tuple[socket.socket, Shadow]) -> None:
    """A call is sent in the next iteration of the loop, and counted when confirmed."""
    ours, shadow = ends
    made = sampler()
    outbox = Outbox(ours, made)
    outbox.start()
    for number in range(3):
        outbox.put(sample(made, number))
    await settle()
    found = [each.record for each in shadow.read()]
    assert [each.call.request_id for each in found if each is not None] == ["r0", "r1", "r2"]
    assert found[0] is not None
    assert found[0].request().inputs == recordable().request.inputs  # type: ignore[union-attr]
    assert (made.counts.in_flight, outbox.used_bytes) == (3, 0)
    shadow.confirm(done=3, recorded=2, nbytes=10, lost={"internal": 1})
    await settle()
    counts = made.counts
    assert (counts.recorded, counts.nbytes, counts.in_flight) == (2, 10, 0)
    assert counts.left_out == {"internal": 1}


async def test_more_calls_may_wait_than_a_transaction_has(
    ends: tuple[socket.socket, Shadow],
) -> None:
    """A killed gateway loses those of its last moment, so their number has no bound of 64."""
    ours, shadow = ends
    made = sampler()
    outbox = Outbox(ours, made, gather_s=3600.0)
    outbox.start()
    await settle()
    for number in range(65):
        outbox.put(record_of(recordable(number), Privacy(), None))
        made.counts.sampled += 1
    await settle()
    assert [] == shadow.read()
    assert 65 == made.counts.in_flight


@in_virtual_time
async def test_gathered_calls_are_one_packet(ends: tuple[socket.socket, Shadow]) -> None:
    """Calls are sent together after `gather_s`."""
    ours, shadow = ends
    made = sampler()
    outbox = Outbox(ours, made, gather_s=0.01)
    outbox.start()
    await settle()
    for number in range(3):
        outbox.put(sample(made, number))
    await elapse(0.009)
    assert [] == shadow.read()
    await elapse(0.002)
    assert 0 == outbox.used_bytes
    assert (len(shadow.read()), shadow.packets) == (3, 1)


async def test_a_full_outbox_rejects_calls_before_recording_them(
    ends: tuple[socket.socket, Shadow],
) -> None:
    """Calls are admitted while the outbox has room; each other call counts as dropped."""
    ours, _shadow = ends
    made = sampler(outbox_calls=2)
    outbox = Outbox(ours, made)
    outbox.start()
    for number in range(2):
        assert outbox.admit()
        assert outbox.put(sample(made, number))
    assert not outbox.admit()
    assert made.counts.dropped == {"queue": 1}
    await settle()  # both are sent
    assert outbox.admit()
    outbox.stopped = "disk full"
    assert not outbox.admit()
    assert made.counts.dropped == {"queue": 1, "stopped": 1}


async def test_full_packets_are_sent_at_once(ends: tuple[socket.socket, Shadow]) -> None:
    """Calls that fill a packet, and those pending at `close`, do not wait for `gather_s`."""
    ours, shadow = ends
    made = sampler()
    outbox = Outbox(ours, made, gather_s=3600.0)
    outbox.start()
    await settle()
    outbox.put(sample(made))
    await settle()
    assert not shadow.read()
    outbox.put(large(made, PACKET_BYTES))
    await settle()
    assert len(shadow.read()) == 2
    outbox.put(sample(made))
    closing = asyncio.create_task(outbox.close(60.0))
    await settle()
    assert len(shadow.read()) == 2
    shadow.confirm(done=4, recorded=3)
    await closing
    assert made.counts.in_flight == 0


async def test_a_stopped_shadow_process_drops_calls(
    ends: tuple[socket.socket, Shadow],
) -> None:
    """Calls that fit neither socket nor outbox are dropped and counted; later ones are sent."""
    ours, shadow = ends
    made = sampler(outbox_bytes=4 * PACKET_BYTES)
    outbox = Outbox(ours, made)
    outbox.start()
    while not made.counts.dropped:
        outbox.put(large(made, PACKET_BYTES))
        await settle()
    assert made.counts.dropped == {"queue": 1}
    assert outbox.used_bytes <= 4 * PACKET_BYTES
    found: list[SampleMessage] = []
    while outbox.used_bytes:
        found += shadow.read()
        await asyncio.sleep(0)
    found += shadow.read()
    assert len(found) == made.counts.sampled - 1
    outbox.put(sample(made))
    await settle()
    (last,) = shadow.read()
    assert last.dropped == {"queue": 1}


@pytest.mark.parametrize(
    ("options", "reason"), [({"sample_bytes": 1000}, "too_large"), ({"outbox_calls": 0}, "queue")]
)
async def test_calls_above_a_limit_are_dropped(
    ends: tuple[socket.socket, Shadow], options: dict[str, int], reason: str
) -> None:
    """Each dropped call is counted by its reason."""
    made = sampler(**options)
    outbox = Outbox(ends[0], made)
    outbox.start()
    outbox.put(large(made, 2000))
    assert made.counts.left_out == {reason: 1}
    assert made.counts.in_flight == 0


async def test_a_new_shadow_process_reveals_lost_calls(
    ends: tuple[socket.socket, Shadow],
) -> None:
    """A call that the old process read but did not confirm counts as `shadow_down`."""
    ours, shadow = ends
    made = sampler()
    outbox = Outbox(ours, made)
    outbox.start()
    outbox.put(sample(made))
    await settle()
    assert shadow.read()  # the process dies now
    shadow.epoch = 0
    shadow.confirm()  # the next one says so
    await settle()
    outbox.put(sample(made))
    await settle()
    flush, call = shadow.read()
    assert (flush.record, call.record is not None) == (None, True)
    shadow.confirm(done=3, recorded=1)
    await settle()
    assert made.counts.left_out == {"shadow_down": 1}
    assert (made.counts.recorded, made.counts.in_flight) == (1, 0)


async def test_confirmations_for_an_earlier_sender_are_ignored(
    ends: tuple[socket.socket, Shadow],
) -> None:
    """They belong to calls of a dead worker."""
    ours, shadow = ends
    made = sampler()
    outbox = Outbox(ours, made)
    outbox.start()
    outbox.put(sample(made))
    await settle()
    shadow.read()
    shadow.epoch += 2
    shadow.confirm(done=1, recorded=1)
    await settle()
    assert (made.counts.recorded, made.counts.in_flight) == (0, 1)


async def test_a_stopped_capture_drops_calls(ends: tuple[socket.socket, Shadow]) -> None:
    """Nothing is sent after a full disk."""
    ours, shadow = ends
    made = sampler()
    outbox = Outbox(ours, made)
    outbox.start()
    outbox.put(sample(made))
    await settle()
    shadow.read()
    shadow.confirm(done=1, lost={"stopped": 1}, stopped="disk full")
    await settle()
    outbox.put(sample(made))
    assert outbox.stopped == "disk full"
    assert made.counts.left_out == {"stopped": 2}


async def test_close_waits_for_confirmations(ends: tuple[socket.socket, Shadow]) -> None:
    """The last calls are written before the process ends."""
    ours, shadow = ends
    made = sampler()
    outbox = Outbox(ours, made)
    outbox.start()
    outbox.put(sample(made))
    closing = asyncio.create_task(outbox.close(60))
    await settle()
    assert [each.record is None for each in shadow.read()] == [False, True]
    assert not closing.done()
    shadow.confirm(done=2, recorded=1)
    await closing
    await outbox.close(60)
    assert (made.counts.recorded, made.counts.in_flight) == (1, 0)


async def test_close_times_out_on_a_silent_shadow_process(
    ends: tuple[socket.socket, Shadow],
) -> None:
    """Every unconfirmed call is counted as `shadow_down`."""
    made = sampler()
    outbox = Outbox(ends[0], made)
    outbox.start()
    outbox.put(sample(made))
    await outbox.close(0)
    assert made.counts.left_out == {"shadow_down": 1}
    assert (made.counts.in_flight, outbox.used_bytes) == (0, 0)
