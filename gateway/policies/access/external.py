"""Lets others decide about calls that the rules allow.

`AskExternal` asks a program outside of the gateway, `AskAuthoriser` an installed package.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, Final, TypeVar

import structlog
from msgspec import Struct

from gateway.api.authoriser import Authoriser
from gateway.api.layer import Entries
from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import Call, InferRequest, inference_of
from gateway.ir.errors import AccessDenied, GatewayError, QuotaExceeded
from gateway.ir.identity import GATEWAY, Identity
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.texts import joinable
from gateway.policies.access.operations import operation_of
from gateway.policies.access.sizes import size_of
from gateway.service import Service
from gateway.settings.fields import Name
from gateway.settings.setting import Setting
from gateway.telemetry.faults import FAULTS, Faults

log = structlog.get_logger(__name__)

R = TypeVar("R")

_MAX_CACHED: Final = 8192
_CALM_S: Final = 10.0
_TOO_MANY: Final = 429


class ExternalFacts(Struct, frozen=True, kw_only=True):
    """What a program outside of the gateway is told of a call. Never its body or a credential.

    Attributes:
        operation: The operation, as in `security.rules`.
        model: The name of the model; "" for none.
        version: The requested version; "" for none.
        protocol: The protocol and carrier, such as `oip.http`.
        listener: The name of the listener.
        elements: The number of elements of all inputs.
        size_bytes: The size of all inputs.
        inputs: The inputs, as `NAME:DATATYPE:AxB;...`.
        method: The HTTP method; `POST` for other carriers.
        path: The path of the request, or `/PROTOCOL/OPERATION/MODEL` where there is none.
        host: The host that the client named; "" for none.
        headers: The headers that `security.external.headers` names.
        address: The IP address of the client.
        request_id: The id of the request. Cached decisions ignore it.
    """

    operation: str
    model: str = ""
    version: str = ""
    protocol: str = ""
    listener: str = ""
    elements: int = 0
    size_bytes: int = 0
    inputs: str = ""
    method: str = "POST"
    path: str = ""
    host: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    address: str = ""
    request_id: str = ""


class ExternalVerdict(Struct, frozen=True):
    """A decision from outside.

    Attributes:
        status: 200 allows the call. 429 refuses it as one too many, and any other one denies it.
        text: What the client is told; "" for the usual text.
    """

    status: int = 200
    text: str = ""

    @property
    def is_allowed(self) -> bool:
        """Whether the call is allowed."""
        return self.status == _OK


_OK: Final = 200
ALLOWED: Final = ExternalVerdict()
DENIED: Final = ExternalVerdict(403)

Decide = Callable[[Identity, ExternalFacts], Awaitable[ExternalVerdict]]
"""Decides about a call. It raises a `GatewayError` or any other exception where it cannot."""

RequestFacts = Callable[[Call[Any]], Mapping[str, Any]]
"""Returns `method`, `path` and `host` of the request of a call, as far as its carrier has them."""


def inputs_text(call: Call[Any]) -> str:
    """Return the inputs of a call, as `NAME:DATATYPE:AxB;...`.

    In names `%`, `:` and `;` are percent-encoded: a name is never read as another input.
    """
    request = inference_of(call)
    return "" if request is None else ";".join(map(_input_text, request.inputs))


def _input_text(tensor: Tensor) -> str:
    datatype = "" if tensor.datatype is None else tensor.datatype.name
    shape = "" if tensor.shape is None else "x".join(map(str, tensor.shape))
    return f"{joinable(tensor.name, ':;')}:{datatype}:{shape}"


class AskExternal:
    """Refuses the calls that a program outside of the gateway denies.

    Args:
        inner: The service to call.
        decide: Asks the program.
        timeout_s: The longest time for an answer.
        allows_on_failure: Whether a call is allowed that the program does not decide in time.
        cache_s: How long a decision holds for equal facts.
        operations: The operations that it is asked about.
        headers: Names of the headers that it is told, in lower case.
        listener: The name of the listener.
        default_model: The model of calls that name none; "" for none.
        request_facts: Reads the request of a call.
        clock: Monotonic seconds.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first two
        self,
        inner: Service,
        decide: Decide,
        *,
        timeout_s: float = 0.05,
        allows_on_failure: bool = False,
        cache_s: float = 10.0,
        operations: frozenset[str],
        headers: frozenset[str] = frozenset(),
        listener: str = "",
        default_model: str = "",
        request_facts: RequestFacts = lambda _call: {},
        inference: Service | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._decide = decide
        self._timeout_s = timeout_s
        self._on_failure = ALLOWED if allows_on_failure else DENIED
        self._cache_s = cache_s
        self._operations = operations
        self._headers = headers
        self._listener = listener
        self._default_model = default_model
        self._request_facts = request_facts
        self._clock = clock
        self._cached: BoundedDict[tuple[Any, ...], tuple[float, ExternalVerdict]]
        self._cached = BoundedDict(_MAX_CACHED)
        self._calm_at = float("-inf")

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*.

        Raises:
            AccessDenied: The program denies the call, or does not decide in time.
            QuotaExceeded: The program refuses it as one too many.
        """
        identity = call.context.client.identity
        inner = self._inference if type(call) is InferRequest else self._inner
        operation = operation_of(call)
        if identity is GATEWAY or operation not in self._operations:
            return await inner(call)
        facts = self._facts(call, operation)
        # Equal facts are equal in all but the id.
        key = (identity, *[getattr(facts, name) for name in facts.__struct_fields__[:-1]])
        expires, verdict = self._cached.get(key, (0.0, DENIED))
        if self._clock() >= expires:
            verdict = await self._ask(identity, facts, key)
        if not verdict.is_allowed:
            kind = QuotaExceeded if verdict.status == _TOO_MANY else AccessDenied
            raise kind(verdict.text or f"this client may not use {operation} here")
        return await inner(call)

    async def _ask(
        self, identity: Identity, facts: ExternalFacts, key: tuple[Any, ...]
    ) -> ExternalVerdict:
        try:
            async with asyncio.timeout(self._timeout_s):
                verdict = await self._decide(identity, facts)
        except TimeoutError:
            return self._failed(f"no answer within {self._timeout_s * 1e3:g} ms")
        except GatewayError as error:
            return self._failed(error.message)
        except FAULTS as error:  # a callable of the user
            return self._failed(f"{type(error).__name__}: {error}")
        if self._cache_s:
            self._cached[key] = self._clock() + self._cache_s, verdict
        return verdict

    def _failed(self, reason: str) -> ExternalVerdict:
        now = self._clock()
        if now >= self._calm_at:
            allows = self._on_failure.is_allowed
            log.warning("no external decision", reason=reason, allowed=allows)
            self._calm_at = now + _CALM_S
        return self._on_failure

    def _facts(self, call: Call[Any], operation: str) -> ExternalFacts:
        context, model = call.context, call.model
        name = self._default_model if model is None or not model.name else model.name
        size = size_of(call)
        facts = {"path": f"/{context.protocol}/{operation}/{name}", **self._request_facts(call)}
        return ExternalFacts(
            operation=operation,
            model=name,
            version="" if model is None else model.version,
            protocol=context.protocol,
            listener=self._listener,
            elements=size.elements,
            size_bytes=size.size_bytes,
            inputs=inputs_text(call),
            headers=tuple(pair for pair in context.metadata if pair[0] in self._headers),
            address=context.client.address,
            request_id=context.request_id,
            **facts,
        )


AUTHORISER: Final = Setting[str | None](
    key="authoriser",
    type=Name | None,
    default=None,
    help="What decides about each call, after the rules: the entry point of an installed "
    "`Authoriser`. Default: none.",
    places=("listener",),
)


class AskAuthoriser:
    """Refuses what an authoriser denies.

    Args:
        inner: The chain inside.
        authoriser: The authoriser of the package.
        name: The name of its entry point.
    """

    def __init__(self, inner: Entries, authoriser: Authoriser, name: str) -> None:
        self._inner = inner
        self._authoriser = authoriser
        self._name = name

    async def __call__(self, call: Call[R], /) -> R:
        """Ask, and call *inner*.

        Raises:
            AccessDenied: The authoriser denies the call.
            InternalError: It raised anything but a `GatewayError`.
        """
        await self._check(call)
        inner = self._inner
        return await (inner.inference if type(call) is InferRequest else inner.questions)(call)

    async def _check(self, call: Call[R]) -> None:
        identity = call.context.client.identity
        if identity is GATEWAY:
            return
        with Faults(f"authoriser {self._name!r}", call.model):
            found = self._authoriser.authorise(identity, call)
            is_allowed = await found if isawaitable(found) else found
        if not is_allowed:
            denied = AccessDenied(f"the client {identity.name!r} may not do this", model=call.model)
            denied.rule = f"authoriser {self._name!r}"
            raise denied
