"""What a streamed response over HTTP has brought of a message that is not complete."""

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.wire.http import HttpResponse


class HeldParts:
    """What has arrived of a message of a streamed response, or of a response that is no stream.

    Args:
        limits: `json_bytes` is the limit on one message.
        kind: What a message is called in errors, with its article: "an event".

    Attributes:
        data: The bytes; a splitter appends those of each part, and removes complete messages.
    """

    def __init__(self, limits: MessageLimits, kind: str) -> None:
        self._most = limits.json_bytes
        self._kind = kind
        self._failed: HttpResponse | None = None
        self.data = bytearray()

    @property
    def is_failure(self) -> bool:
        """Whether the response is a failure, and no stream."""
        return self._failed is not None

    def end(self) -> list[HttpResponse]:
        """Return the response that was not a stream; none for a stream.

        Raises:
            MalformedMessage: The stream ends within a message.
        """
        if self._failed is not None:
            return [HttpResponse(self._failed.status, self._failed.headers, (bytes(self.data),))]
        if self.data.strip():
            raise MalformedMessage(
                f"stream ended after {len(self.data)} bytes of {self._kind}, which begins with "
                f"{bytes(self.data[:16])!r}"
            )
        return []

    def fail(self, part: HttpResponse) -> list[HttpResponse]:
        """Keep a part of a failure that is no stream; it is returned at its end."""
        self._failed = part
        self.data += part.view
        self.check()
        return []

    def check(self) -> None:
        """Raise TooLarge if the message exceeds the limit."""
        if len(self.data) > self._most:
            raise TooLarge(
                f"the upstream streams {self._kind} of over {self._most} bytes, which is the limit",
                limit="json_bytes",
            )
