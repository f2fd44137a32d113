"""Completes requests of old protocols after their calls, by what only models know of tensors.

A frontend reads what its protocol sends, and the layers complete it for the server that gets the
call. What is recorded for others to read must be complete as well, whatever the server needs.
"""

from contextvars import ContextVar
from typing import Any, Final

from gateway.ir.calls import Call, InferRequest, StreamInferRequest
from gateway.ir.errors import GatewayError
from gateway.policies.complete.policy import Complete, is_incomplete
from gateway.policies.complete.tensors import ALL_NEEDS
from gateway.service import Service

_SERVICE: Final[ContextVar[Service]] = ContextVar("gateway_completion_service")


class _Completed(Exception):
    """Ends the completion of a request before anything is sent."""

    def __init__(self, request: InferRequest) -> None:
        super().__init__()
        self.request = request


def needs_completion(request: InferRequest) -> bool:
    """Return whether the metadata of the model may add to a request."""
    return bool(
        request.batch_size is not None
        or request.flat_members
        or request.texts is not None
        or not request.context.needs <= ALL_NEEDS
        or is_incomplete(request.inputs, ALL_NEEDS)
    )


class RequestCompletion:
    """Completes requests, and keeps the metadata of models for that."""

    def __init__(self) -> None:
        self._complete = Complete(_ask, ALL_NEEDS, inference=_end)

    async def complete(self, request: InferRequest, service: Service) -> InferRequest:
        """Return a request with names, datatypes and shapes; as it is where they are not known.

        Args:
            request: The request as the client sent it.
            service: Replies to questions about the model.
        """
        token = _SERVICE.set(service)
        try:
            await self._complete.handle_inference(request)
        except _Completed as found:
            return found.request
        except GatewayError:
            return request
        finally:
            _SERVICE.reset(token)
        return request


async def _ask(call: Call[Any], /) -> Any:
    """Pass on a question; a stream of a task on texts is only looked at."""
    if isinstance(call, StreamInferRequest):
        raise _Completed(call.request)
    return await _SERVICE.get()(call)


async def _end(call: Call[Any], /) -> Any:
    assert isinstance(call, InferRequest)  # noqa: S101  # `Complete` calls it with nothing else
    raise _Completed(call)
