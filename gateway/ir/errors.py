"""One taxonomy of errors for all protocols; no protocol's numbers live here.

Each protocol keeps a total table from `ErrorCode` to its own statuses, and its reverse.
"""

from __future__ import annotations

import copy
import enum
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from gateway.ir.context import ModelRef, Origin


class ErrorCode(enum.Enum):
    """What kind of failure it is, in no protocol's terms."""

    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    NOT_READY = "not_ready"
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too_large"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    BAD_UPSTREAM = "bad_upstream"
    UPSTREAM = "upstream"
    INTERNAL = "internal"


class GatewayError(Exception):
    """Base of every error the gateway answers with.

    Args:
        message: Names the thing, what was found and what was needed.
        model: The model the call was about.
        origin: The upstream's own answer, kept for callers of the same codec.
        limit: YAML name of the limit that was exceeded, for its counter.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        model: ModelRef | None = None,
        origin: Origin | None = None,
        limit: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.model = model
        self.origin = origin
        self.limit = limit

    def again(self) -> Self:
        """Return the same error for one more caller, with this one as its cause.

        One object that is raised to several gathers the tracebacks of all of them.
        """
        same = copy.copy(self)
        same.__cause__ = self
        return same


class InvalidRequest(GatewayError):
    """The request is wrong, whoever answers it."""

    code = ErrorCode.INVALID_ARGUMENT


class MalformedMessage(InvalidRequest):
    """The bytes are not a message of their protocol."""


class InvalidTensor(InvalidRequest):
    """A tensor's data, datatype and shape do not agree."""


class NotFound(GatewayError):
    """What was asked for does not exist."""

    code = ErrorCode.NOT_FOUND


class ModelNotFound(NotFound):
    """No such model, or no such version of it."""


class NoRoute(NotFound):
    """No route matches the call."""


class RegionNotFound(NotFound):
    """No region of shared memory is registered under this name."""


class RegionExists(InvalidRequest):
    """A region of shared memory is registered under this name already."""


class RegionUnusable(InvalidRequest):
    """A segment cannot be opened, or has not the room that a region or a tensor needs."""


class NotReady(GatewayError):
    """The model or server exists and cannot answer yet."""

    code = ErrorCode.NOT_READY
    retryable = True


class Unsupported(GatewayError):
    """A call, datatype or option that this protocol or target cannot carry."""

    code = ErrorCode.UNSUPPORTED


class Decoupled(Unsupported):
    """The model answers any number of times, and its server will not be asked for one answer."""


class NotOneAnswer(Unsupported):
    """The model ran, and gave no answer or more than one where one was asked for."""


class TooLarge(GatewayError):
    """A limit on size or count is exceeded."""

    code = ErrorCode.TOO_LARGE


class Unauthenticated(GatewayError):
    """The caller did not say who it is."""

    code = ErrorCode.UNAUTHENTICATED


class Forbidden(GatewayError):
    """The caller may not do this."""

    code = ErrorCode.FORBIDDEN


class Overloaded(GatewayError):
    """One of the gateway's own limits on load is reached."""

    code = ErrorCode.OVERLOADED
    retryable = True


class Unavailable(GatewayError):
    """The upstream cannot be reached, or broke off before it answered."""

    code = ErrorCode.UNAVAILABLE
    retryable = True


class NotSent(Unavailable):
    """The upstream cannot have seen the call: sending it again is always safe."""


class DeadlineExceeded(GatewayError):
    """The call's time is over."""

    code = ErrorCode.DEADLINE_EXCEEDED


class Cancelled(GatewayError):
    """The caller left, or the upstream gave the call up."""

    code = ErrorCode.CANCELLED


class UpstreamProtocolError(GatewayError):
    """The upstream broke its own protocol."""

    code = ErrorCode.BAD_UPSTREAM


class UpstreamError(GatewayError):
    """The upstream answered with an error of no finer kind."""

    code = ErrorCode.UPSTREAM


class InternalError(GatewayError):
    """The gateway's own fault."""

    code = ErrorCode.INTERNAL


# One class for each code: what a protocol's reverse table turns a wire status into.
ERROR_CLASSES: dict[ErrorCode, type[GatewayError]] = {
    cls.code: cls
    for cls in (
        InvalidRequest,
        NotFound,
        NotReady,
        Unsupported,
        TooLarge,
        Unauthenticated,
        Forbidden,
        Overloaded,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        UpstreamProtocolError,
        UpstreamError,
        InternalError,
    )
}
