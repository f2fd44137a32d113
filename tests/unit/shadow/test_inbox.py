"""The inbox of the shadow process: messages of a gateway that has exited."""

from __future__ import annotations

from gateway.shadow.inbox import sample_inbox
from gateway.shadow.packets import PacketWriter, Sender, socket_pair
from gateway.shadow.records.transfer import Confirmation, SampleMessage, encode_message


class Messages:
    """A receiver that keeps the numbers of the messages."""

    has_room = True

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def put(self, _sender: Sender, number: int, _message: SampleMessage, _size: int) -> None:
        """Keep the number."""
        self.numbers.append(number)


async def test_messages_of_an_exited_gateway_are_read() -> None:
    """Unread confirmations reset the socket, but no call is lost."""
    serving, shadow = socket_pair()
    inbox, receiver = sample_inbox({1: shadow}), Messages()
    inbox.start(receiver)
    for _ in range(3):
        inbox.confirm(1, Confirmation())
    writer = PacketWriter(7)
    for number in (1, 2):
        writer.put(number, encode_message(SampleMessage()))
        buffers, parts = writer.packet()
        serving.sendmsg(buffers)
        writer.sent(parts)
    serving.close()  # with unread confirmations
    inbox.stop()
    assert receiver.numbers == [1, 2]
    inbox.confirm(1, Confirmation())
    shadow.close()
