"""What a streamed response over HTTP has brought of a message that is not complete."""

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.wire.http import HttpResponse


class PartsSplitter:
    """Base of what cuts the parts of one streamed response into messages.

    Args:
        limits: `json_bytes` is the limit on one message.
        kind: What a message is called in errors, with its article: "an event".
    """

    def __init__(self, limits: MessageLimits, kind: str) -> None:
        self._most = limits.json_bytes
        self._kind = kind
        self._held = bytearray()
        self._failed: HttpResponse | None = None

    def end(self) -> list[HttpResponse]:
        """Return the response that was not a stream; none for a stream.

        Raises:
            MalformedMessage: The stream ends within a message.
        """
        if self._failed is not None:
            return [HttpResponse(self._failed.status, self._failed.headers, (bytes(self._held),))]
        if self._held.strip():
            raise MalformedMessage(
                f"stream ended after {len(self._held)} bytes of {self._kind}, which begins with "
                f"{bytes(self._held[:16])!r}"
            )
        return []

    def _fail(self, part: HttpResponse) -> list[HttpResponse]:
        """Keep a part of a failure that is no stream; it is returned at its end."""
        self._failed = part
        self._held += part.view
        self._check_held()
        return []

    def _check_held(self) -> None:
        """Raise TooLarge if the message exceeds the limit."""
        if len(self._held) > self._most:
            raise TooLarge(
                f"the upstream streams {self._kind} of over {self._most} bytes, which is the limit",
                limit="json_bytes",
            )
