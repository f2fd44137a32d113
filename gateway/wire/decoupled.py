"""StreamsDecoupled: a codec whose clients ask for no streams, and take the replies of one."""

import abc

from gateway.ir.calls import InferRequest, StreamInferRequest


class StreamsDecoupled(abc.ABC):
    """A codec that makes an inference of a decoupled model a stream."""

    @abc.abstractmethod
    def stream_of(self, call: InferRequest, /) -> StreamInferRequest | None:
        """Return an inference as a stream, if its client takes several replies; None if not.

        The stream is used if the model is decoupled.
        """
