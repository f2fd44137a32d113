"""TensorTransform: changes the requests of a target, and its replies."""

from typing import Protocol

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Need


class TensorTransform(Protocol):
    """The value of `transform` of a target names one, by an entry point of `gateway.transforms`.

    The request has the names of the target's model and tensors. The methods run on the event loop.

    Attributes:
        needs: What the gateway adds to a request before `before` reads it.
    """

    needs: frozenset[Need]

    def before(self, request: InferRequest, /) -> InferRequest:
        """Return the request for the target; `request.changed` makes another one."""

    def after(self, request: InferRequest, reply: InferResponse, /) -> InferResponse:
        """Return the reply for the client.

        Args:
            request: What `before` returned.
            reply: What the target returned; each reply of a stream.
        """
