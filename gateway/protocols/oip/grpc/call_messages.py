"""The functions for one kind of call that the protobuf library reads and writes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from gateway.ir.calls import Call
from gateway.ir.context import Context
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.grpc.dialects import GrpcDialect

CallMessage = tuple[str, Message]
"""Method and message of a request."""

CallReader = Callable[[memoryview, Context, MessageLimits], Call[Any]]


@dataclass(frozen=True, slots=True)
class CallMessages:
    """Writes and reads the messages of one kind of call.

    Attributes:
        write_reply: To a client.
        write_call: To an upstream.
        read_reply: Reads the reply that an upstream sent.
    """

    write_reply: Callable[[Any, Any], Message]
    write_call: Callable[[Any, GrpcDialect], CallMessage]
    read_reply: Callable[[Any, memoryview, MessageLimits], Any]
