"""AskAuthoriser: lets an `Authoriser` of an installed package decide about each call."""

from __future__ import annotations

from inspect import isawaitable
from typing import Final, TypeVar

from gateway.api.authoriser import Authoriser
from gateway.api.layer import Entries
from gateway.ir.calls import Call, InferRequest
from gateway.ir.errors import AccessDenied
from gateway.ir.identity import GATEWAY
from gateway.settings.fields import Name
from gateway.settings.setting import Setting
from gateway.telemetry.faults import Faults

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
        with Faults(f"authoriser {self._name!r}", call.model):
            found = self._authoriser.authorise(identity, call)
            is_allowed = await found if isawaitable(found) else found
        if not is_allowed:
            denied = AccessDenied(f"the client {identity.name!r} may not do this", model=call.model)
            denied.rule = f"authoriser {self._name!r}"
            raise denied
