"""AskInOwnForm: sends questions about a model to a server of the client's protocol as they came.

Its answer has what the common form has no place for. Targets of any other form get the call.
"""

from typing import Any, Final, TypeVar

from gateway.ir.calls import Call, InferRequest, OpaqueCall, StreamInferRequest, rewritten
from gateway.ir.context import Origin
from gateway.ir.errors import Unsupported
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_INFERENCES: Final = frozenset({InferRequest, StreamInferRequest, OpaqueCall})


class AskInOwnForm:
    """Sends the message of a question on, where the target has a server of its form.

    Args:
        inner: The service to call.
    """

    def __init__(self, inner: Service) -> None:
        self._inner = inner

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*; the reply to a whole message is that of its server, an `Origin`."""
        origin = call.context.origin
        if origin is None or not origin.whole or type(call) in _INFERENCES:
            return self._inner(call)
        return self._ask(call, origin)

    async def _ask(self, call: Call[Any], origin: Origin) -> Any:
        model = getattr(call, "about", None) or call.model
        context = call.with_context(origin=None).context
        try:
            return await self._inner(OpaqueCall(model=model, context=context, message=origin))
        except Unsupported as error:
            if error.origin is not None:
                raise
        return await self._inner(rewritten(call))
