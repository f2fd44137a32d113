"""A cache of written response headers, one for each shape of response that a model has.

Responses repeat names, shapes and sizes.  Only the id differs, which is the last field in every
form of the header.

Source: docs/protocols/tensorrt-v1.md, "5. Inference response over HTTP".
"""

from collections.abc import Hashable
from dataclasses import dataclass

from google.protobuf import text_format

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import as_raw
from gateway.protocols.trtis.infer_response import write_reply
from gateway.protocols.trtis.textproto.writer import response_line
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.protobuf.wire_format import VARINT, tag, varint

_ID = varint(tag(5, VARINT))
# Responses of some hundred models with a few batch sizes each. Longer headers are rare.
_CACHE_ENTRIES = 512
_REMEMBERED_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """A header in each of its forms, without its id."""

    _line: str
    _text: bytes
    _message: bytes

    def line(self, number: int) -> str:
        """Return NV-InferResponse with an id; 0 is none."""
        return f"{self._line} id: {number}" if number else self._line

    def text(self, number: int) -> bytes:
        """Return the text at the end of a body."""
        return b"%sid: %d\n" % (self._text, number) if number else self._text

    def message(self, number: int) -> bytes:
        """Return the message."""
        return self._message + _ID + varint(number) if number else self._message


class ResponseHeaderCache:
    """Writes the headers of responses, and caches some hundred of them."""

    def __init__(self) -> None:
        self._known: dict[Hashable, ResponseHeader] = {}

    def write(
        self, call: InferRequest, reply: InferResponse
    ) -> tuple[ResponseHeader, list[memoryview]]:
        """Describe the response to *call*.

        Returns:
            Its header, and a view for each output; raises as `write_reply` does.
        """
        found = _plain(call, reply)
        if found is None:
            header, views = write_reply(call, reply)
            return _head(header), views
        key, views = found
        head = self._known.get(key)
        if head is None:
            header, views = write_reply(call, reply)
            head = _head(header)
            if header.ByteSize() <= _REMEMBERED_LENGTH:
                if len(self._known) >= _CACHE_ENTRIES:
                    del self._known[next(iter(self._known))]
                self._known[key] = head
        return head, views


def _plain(call: InferRequest, reply: InferResponse) -> tuple[Hashable, list[memoryview]] | None:
    """Return the key of a header, and the bytes of the outputs.

    None for outputs whose sizes hardly repeat (BYTES), for classes and shared memory, and for
    incomplete replies.
    """
    outputs = {tensor.name: tensor for tensor in reply.outputs}
    described: list[Hashable] = []
    views = []
    for requested in call.outputs:
        tensor = outputs.get(requested.name)
        if tensor is None or requested.classes or tensor.datatype is Datatype.BYTES:
            return None
        if tensor.shape is None or type(tensor.data) is SharedMemoryData:
            return None
        view = as_raw(tensor)
        views.append(view)
        described.append((requested.name, tensor.datatype, tensor.shape, view.nbytes))
    key = (call.model, reply.model, call.batch_size, reply.batch_size, *described)
    return key, views


def _head(header: pb.InferResponseHeader) -> ResponseHeader:
    text = text_format.MessageToString(header).encode()
    return ResponseHeader(response_line(header), text, header.SerializeToString())
