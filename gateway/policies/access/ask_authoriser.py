"""AskAuthoriser: lets an `Authoriser` of an installed package decide about each call."""

from __future__ import annotations

from inspect import isawaitable
from typing import Final, TypeVar

import structlog

from gateway.api.authoriser import Authoriser
from gateway.api.layer import Entries
from gateway.ir.calls import Call, InferRequest
from gateway.ir.errors import AccessDenied, GatewayError, InternalError
from gateway.ir.identity import GATEWAY
from gateway.settings.fields import Name
from gateway.settings.setting import Setting

log = structlog.get_logger(__name__)

R = TypeVar("R")

AUTHORISER: Final = Setting[str | None](
    key="authoriser",
    type=Name | None,
    default=None,
    help="What decides about each call, after the rules: an `Authoriser` of an installed package, "
    "by its entry point. Default: none.",
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
        try:
            found = self._authoriser.authorise(identity, call)
            is_allowed = await found if isawaitable(found) else found
        except GatewayError:
            raise
        except Exception as error:
            log.exception("internal error", part=f"authoriser {self._name!r}")
            raise InternalError("internal error of the gateway", model=call.model) from error
        if not is_allowed:
            denied = AccessDenied(f"the client {identity.name!r} may not do this", model=call.model)
            denied.rule = f"authoriser {self._name!r}"
            raise denied
