"""TeedBody: a streaming body whose bytes are also kept, up to a limit, to record a call.

Pieces of a body stay valid after they are piped, so keeping them copies nothing and delays nothing.
"""

from dataclasses import dataclass

from msgspec.structs import replace  # the bytes stay the same, so the origin holds

from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.bodies.streaming_body import ForwardingBody, StreamingBody
from gateway.ir.calls import InferRequest
from gateway.ir.tensors.data import RawData, StreamedData
from gateway.ir.tensors.tensor import Tensor


@dataclass(slots=True)
class TeeBudget:
    """The bytes that all teed bodies may keep together.

    Attributes:
        limit_bytes: Their limit.
        used_bytes: What they keep now.
    """

    limit_bytes: int
    used_bytes: int = 0


class TeedBody(ForwardingBody):
    """A `StreamingBody` that keeps what it pipes or reads.

    Args:
        source: Must not be started.
        budget: Shared by all teed bodies. A body without room in it keeps nothing.

    Attributes:
        remaining_bytes: Bytes that have not been piped.
    """

    def __init__(self, source: StreamingBody, budget: TeeBudget) -> None:
        super().__init__(source)
        self._budget = budget
        self._pieces: list[memoryview] = []
        self._whole: memoryview | None = None
        self._size = source.end - source.start
        self.remaining_bytes = self._size
        if budget.used_bytes + self._size > budget.limit_bytes:
            self._size = 0
        self._should_keep = bool(self._size)
        budget.used_bytes += self._size
        self.start = source.start
        self.end = source.end

    def write(self, piece: memoryview, /) -> None:
        """Keep the next bytes, and write them to the sink."""
        self.remaining_bytes -= piece.nbytes
        if self._should_keep:
            self._pieces.append(piece)
        self.forward(piece)

    async def read_all(self) -> memoryview:
        """Return the body of the source, and keep it.

        Raises what `StreamingBody.read_all` raises.
        """
        whole = await super().read_all()
        if self._should_keep:
            self._whole = whole[self.start :]
        return whole

    def kept(self) -> memoryview | None:
        """Return the bytes from `start` to `end`; None if some are missing. Copies piped bytes."""
        if self._whole is not None:
            return self._whole
        if not self._should_keep or self.remaining_bytes:
            return None
        return memoryview(b"".join(self._pieces))

    def release(self) -> None:
        """Keep nothing any more; idempotent."""
        self._budget.used_bytes -= self._size
        self._size = 0
        self._should_keep = False
        self._pieces.clear()
        self._whole = None


def tee_body(call: InferRequest, budget: TeeBudget) -> tuple[InferRequest, TeedBody | None]:
    """Return *call* with a teed body in place of its streaming one, and the teed body.

    A call whose inputs are all received is returned as it is, with None.
    """
    source = streaming_body_of(call)
    if source is None:
        return call, None
    teed = TeedBody(source, budget)

    def move(tensor: Tensor) -> Tensor:
        data = tensor.data
        if not isinstance(data, StreamedData):
            return tensor
        return replace(tensor, data=StreamedData(teed, data.start, data.size_bytes))

    return replace(call, inputs=tuple(map(move, call.inputs))), teed


def with_kept_body(call: InferRequest, start: int, kept: memoryview) -> InferRequest:
    """Return *call* with the bytes of its streamed inputs.

    Args:
        call: From `tee_body`.
        start: The `start` of the teed body.
        kept: What the teed body kept.
    """

    def fill(tensor: Tensor) -> Tensor:
        data = tensor.data
        if not isinstance(data, StreamedData):
            return tensor
        offset = data.start - start
        return replace(tensor, data=RawData(kept[offset : offset + data.size_bytes]))

    return replace(call, inputs=tuple(map(fill, call.inputs)))
