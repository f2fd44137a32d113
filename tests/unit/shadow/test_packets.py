"""Messages in packets: complete whatever their size, and skipped when a peer restarts."""

from __future__ import annotations

import os

import pytest

from gateway.shadow.packets import PACKET_BYTES, PacketReader, PacketWriter


def packets(writer: PacketWriter) -> list[bytes]:
    found = []
    while writer:
        buffers, parts = writer.packet()
        found.append(b"".join(buffers))
        writer.sent(parts)
    return found


def received(reader: PacketReader, sent: list[bytes]) -> list[tuple[int, int, bytes]]:
    return [
        (epoch, number, bytes(view))
        for packet in sent
        for epoch, number, view in reader.receive(packet)
    ]


@pytest.mark.parametrize("size", [1, 1000, PACKET_BYTES - 29, PACKET_BYTES, 5 * PACKET_BYTES + 1])
def test_messages_of_any_size_arrive_whole(size: int) -> None:
    """A message is the bytes of its buffers, whatever the number of packets."""
    writer = PacketWriter(7)
    messages = [os.urandom(size), b"b", os.urandom(size)]
    for number, message in enumerate(messages, 1):
        assert writer.put(number, [message[:1], message[1:]] if size > 1 else [message])
    sent = packets(writer)
    assert max(map(len, sent)) <= PACKET_BYTES
    found = received(PacketReader(), sent)
    assert found == [(7, number, message) for number, message in enumerate(messages, 1)]


def test_small_messages_share_a_packet() -> None:
    """A packet carries as many messages as fit."""
    writer = PacketWriter(7)
    for number in range(50):
        writer.put(number, [b"head", b"elements"])
    (packet,) = packets(writer)
    assert len(received(PacketReader(), [packet])) == 50


def test_many_buffers_are_sent_in_several_packets() -> None:
    """One `sendmsg` accepts at most 1024 buffers."""
    writer = PacketWriter(7)
    writer.put(1, [bytes([number % 256]) for number in range(3000)])
    buffers, _ = writer.packet()
    assert len(buffers) <= 1024
    ((_, _, message),) = received(PacketReader(), packets(writer))
    assert message == bytes(number % 256 for number in range(3000))


def test_a_late_reader_skips_a_partial_message() -> None:
    """The reader starts with the next complete message."""
    writer = PacketWriter(7)
    writer.put(1, [os.urandom(3 * PACKET_BYTES)])
    writer.put(2, [b"whole"])
    assert received(PacketReader(), packets(writer)[1:]) == [(7, 2, b"whole")]


def test_a_new_writer_discards_the_partial_message_of_the_old() -> None:
    """A partial message of a dead sender is not mixed with messages of the next sender."""
    old, new = PacketWriter(7), PacketWriter(8)
    old.put(1, [os.urandom(3 * PACKET_BYTES)])
    message = os.urandom(2 * PACKET_BYTES)
    new.put(1, [message])
    sent = [*packets(old)[:2], *packets(new)]
    assert received(PacketReader(), sent) == [(8, 1, message)]


def test_clear_discards_unsent_messages() -> None:
    """A cleared writer has no packet."""
    writer = PacketWriter(7)
    writer.put(1, [b"a"])
    writer.clear()
    assert not writer
