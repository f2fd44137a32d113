"""The errors of the gateway, without any protocol's status codes.

Each protocol has a complete table from `ErrorCode` to its own statuses, and the reverse.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Self

if TYPE_CHECKING:
    from gateway.ir.context import Client, Metadata, ModelRef, Origin


class ErrorCode(enum.Enum):
    """The kind of an error, independent of any protocol."""

    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    NOT_READY = "not_ready"
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too_large"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    QUOTA_EXCEEDED = "quota_exceeded"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    BAD_UPSTREAM = "bad_upstream"
    UPSTREAM = "upstream"
    INTERNAL = "internal"


SERVER_ERRORS: Final = frozenset(
    {
        ErrorCode.UNAVAILABLE,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.BAD_UPSTREAM,
        ErrorCode.UPSTREAM,
        ErrorCode.INTERNAL,
        ErrorCode.NOT_READY,
    }
)
"""Errors of a server, whatever the request was."""


class GatewayError(Exception):
    """Base of every error that the gateway returns to callers.

    Args:
        message: What is wrong, what was found, and what is expected.
        model: The model of the call.
        origin: The upstream's response, kept for callers of the same codec.
        limit: YAML name of the exceeded limit, for its counter.

    Attributes:
        attempted: The endpoint that failed, or the target if it has one endpoint; "" if there was
            no choice.
        retry_after_s: When the server, or a limit of the gateway, wants the call again; `math.inf`
            for never, None if it did not say.
        has_alternative: Of a refusal of a server: whether another endpoint serves calls; None if
            that is not known.
        client: The sender of a request that reached no service; None if it is unknown.
        request_id: The id of such a request; "" for none.
        metadata: Headers or metadata of such a request.
        path: Its path or method, as far as its frontend has seen it; "" for none.
        wire_status: The status that its transport answers such a request with, of HTTP or of gRPC;
            None where a codec writes the response, and for no response.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    is_retryable: ClassVar[bool] = False
    attempted: str = ""
    path: str = ""
    retry_after_s: float | None = None
    has_alternative: bool | None = None

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
        self.client: Client | None = None
        self.request_id = ""
        self.metadata: Metadata = ()
        self.wire_status: int | None = None

    def copy(self) -> Self:
        """Return a copy for another caller, with this error as its cause.

        An object raised to several callers would accumulate all their tracebacks.
        """
        copied = copy.copy(self)
        copied.__cause__ = self
        return copied


class InvalidRequest(GatewayError):
    """The request is invalid for every target."""

    code = ErrorCode.INVALID_ARGUMENT


class MalformedMessage(InvalidRequest):
    """The bytes are not a valid message of the protocol."""


class InvalidTensor(InvalidRequest):
    """A tensor's data, datatype and shape do not match."""


class InvalidMember(InvalidRequest):
    """One member of the request is wrong, or its model does not serve it.

    Args:
        message: What is wrong, what was found, and what is expected.
        member: Name of the member; "" for the whole request.
        reason: A word for programs, such as "unsupported_model"; "" for none.
        model: The model of the call.
    """

    def __init__(
        self, message: str, *, member: str = "", reason: str = "", model: ModelRef | None = None
    ) -> None:
        super().__init__(message, model=model)
        self.member = member
        self.reason = reason


class VersionNotNumeric(InvalidRequest):
    """The version is no whole number, and those of the model's server are."""


class ModelNotNamed(InvalidRequest):
    """The request names no model, and there is no default model."""


class NotFound(GatewayError):
    """The requested object does not exist."""

    code = ErrorCode.NOT_FOUND


class ModelNotFound(NotFound):
    """The model, or this version of it, does not exist."""


class VersionNotFound(ModelNotFound):
    """The model exists, but not this version of it."""


class UnknownToServer(ModelNotFound):
    """A client asks whether a model is ready that no server has, or whose version none has."""


class NoRoute(NotFound):
    """No route matches the call."""


class RegionNotFound(NotFound):
    """No region of shared memory is registered under this name."""


class RegionExists(InvalidRequest):
    """A region of shared memory is already registered under this name."""


class RegionUnusable(InvalidRequest):
    """A segment cannot be opened, or is too small for a region or a tensor."""


class NotReady(GatewayError):
    """The model or server exists but is not ready."""

    code = ErrorCode.NOT_READY
    is_retryable = True


class Unsupported(GatewayError):
    """This protocol or target does not support a call, datatype or option."""

    code = ErrorCode.UNSUPPORTED


class Decoupled(Unsupported):
    """The model is decoupled: its server rejects requests for exactly one response."""


class NotOneReply(Unsupported):
    """The model produced no reply or several, and the caller expects exactly one."""


class SequenceIdTooLarge(Unsupported):
    """The target's protocol has no field for so large a sequence id."""


class TooLarge(GatewayError):
    """A size or count exceeds its limit."""

    code = ErrorCode.TOO_LARGE


class Unauthenticated(GatewayError):
    """The caller sent no valid credentials.

    Attributes:
        was_sent: Whether it sent any.
        credential: The id of what it sent, for the log only; "" if that is unknown.
        shown: What else the log shows of it: its `subject`, `kid` and `issuer`.
    """

    code = ErrorCode.UNAUTHENTICATED
    was_sent: bool = False
    credential: str = ""
    shown: Mapping[str, str] = MappingProxyType({})


class Forbidden(GatewayError):
    """The caller is not allowed to do this."""

    code = ErrorCode.FORBIDDEN


class AccessDenied(Forbidden):
    """No rule of the gateway allows the client to do this, or one denies it.

    Attributes:
        rule: The rule that denies it, for the log only; None for none.
    """

    rule: str | None = None


class QuotaExceeded(GatewayError):
    """The client has used up a quota."""

    code = ErrorCode.QUOTA_EXCEEDED


class Overloaded(GatewayError):
    """The gateway has reached one of its load limits."""

    code = ErrorCode.OVERLOADED
    is_retryable = True


class RateExceeded(Overloaded):
    """The caller sends more calls in a second than it may; the gateway is not overloaded."""


class QueueTimeout(Overloaded):
    """The call waited in a queue of the gateway for longer than its own queue timeout."""

    @classmethod
    def after(cls, timeout_us: int, queue: str, model: ModelRef | None) -> Self:
        """Return the error of a call that waited *timeout_us* for *queue*.

        It begins with Triton's words, which clients search for.
        """
        text = f"the request waited for {queue} longer than {timeout_us} us (its parameter timeout)"
        return cls(f"Request timeout expired: {text}", model=model)


class Unavailable(GatewayError):
    """The upstream cannot be reached, or disconnected before it responded."""

    code = ErrorCode.UNAVAILABLE
    is_retryable = True


class LoadFailed(Unavailable):
    """The model of the call cannot be loaded; a retry would not load it either."""

    is_retryable = False


class NotSent(Unavailable):
    """The upstream did not receive the call, so a retry is always safe."""


class ConnectFailure(NotSent):
    """No connection to the upstream could be opened."""


class DeadlineExceeded(GatewayError):
    """The call's deadline is exceeded."""

    code = ErrorCode.DEADLINE_EXCEEDED


class Cancelled(GatewayError):
    """The caller disconnected, or the upstream cancelled the call."""

    code = ErrorCode.CANCELLED


class UpstreamProtocolError(GatewayError):
    """The upstream violated its protocol."""

    code = ErrorCode.BAD_UPSTREAM


class UpstreamError(GatewayError):
    """The upstream responded with an error that has no more specific class."""

    code = ErrorCode.UPSTREAM


class InvalidOutput(UpstreamError):
    """The output of a model has a value that the caller's request cannot get."""


class InternalError(GatewayError):
    """A defect of the gateway."""

    code = ErrorCode.INTERNAL


# One class for each code: protocols convert a wire status to an error by this table.
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
        QuotaExceeded,
        Overloaded,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        UpstreamProtocolError,
        UpstreamError,
        InternalError,
    )
}
