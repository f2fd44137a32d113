"""The context of a trace: `traceparent` and the fields `trace_id` and `span_id` of a frame.

The ids of traces in brpc have 64 bits: the second half of those of W3C. There is no field for the
state of a trace, nor for its sampling: brpc sends ids only of calls that it samples.

Source: brpc, "rpcz"; W3C Trace Context, "Interoperating with existing systems which use shorter
identifiers".
"""

import re
from typing import Final

from gateway.ir.context import Metadata
from gateway.schema.baidu_std_pb2 import RpcRequestMeta

_HEADER: Final = "traceparent"
_FORM: Final = re.compile(r"00-[0-9a-f]{16}([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f][13579bdf]")
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


def trace_headers(request: RpcRequestMeta) -> Metadata:
    """Return the header for the ids in *request*; none if an id is absent."""
    if not request.trace_id or not request.span_id:
        return ()
    return ((_HEADER, f"00-{request.trace_id % _WRAP:032x}-{request.span_id % _WRAP:016x}-01"),)


def write_trace(request: RpcRequestMeta, metadata: Metadata) -> None:
    """Write the ids in *metadata*, if it has those of a sampled trace, into *request*."""
    for name, value in metadata:
        found = _FORM.fullmatch(value) if name == _HEADER else None
        if found is not None:
            request.trace_id, request.span_id = (_signed(digits) for digits in found.groups())
            return


def _signed(digits: str) -> int:
    """Return 16 hexadecimal digits as an int64."""
    number = int(digits, 16)
    return number - _WRAP if number >= _SIGN else number
