"""StreamInfer towards an old server: a stream of one request has exactly one answer.

Source: docs/protocols/tensorrt-v1.md, "18. Towards an old server".
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.ir.errors import MalformedMessage
from gateway.wire.grpc import GrpcResponse


class SingleReplySplitter:
    """Gives the answers as they come, and notices when there is none or a second one."""

    def __init__(self) -> None:
        self._answers = 0

    def receive(self, part: GrpcResponse, /) -> Sequence[GrpcResponse]:
        """Return the answer.

        Raises:
            MalformedMessage: It is the second one.
        """
        self._answers += 1
        if self._answers > 1:
            raise MalformedMessage("a second answer came to one request of a stream")
        return (part,)

    def end(self) -> Sequence[GrpcResponse]:
        """Return nothing.

        Raises:
            MalformedMessage: The stream ended without an answer.
        """
        if not self._answers:
            raise MalformedMessage("the stream ended without an answer")
        return ()
