"""Open Inference Protocol v2, over HTTP and gRPC: what this folder exports is `SPEC`.

Options, for a listener: `not_ready_status` (503 or 409). For an upstream: `dialect` (auto, triton,
mlserver, kserve, ovms or gateway).
"""

from __future__ import annotations

from gateway.protocols.oip.dialects import dialect_of
from gateway.protocols.oip.grpc import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.oip.http import HttpCodec
from gateway.wire.codec import GrpcBinding, HttpBinding, Options, ProtocolSpec

_DIALECTS = ("auto", "triton", "mlserver", "kserve", "ovms", "gateway")
_NOT_READY = ("503", "409")


def check_options(options: Options) -> Options:
    """Return *options* with every value in its type.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    checked = dict(options)
    for key, value in options.items():
        if key == "dialect":
            if value not in _DIALECTS:
                raise ValueError(f"dialect {value!r} is none of {', '.join(_DIALECTS)}")
        elif key == "not_ready_status":
            if str(value) not in _NOT_READY:
                raise ValueError(f"not_ready_status {value!r} is none of {', '.join(_NOT_READY)}")
            checked[key] = int(value)
        else:
            raise ValueError(f"oip has no option {key!r}, only dialect and not_ready_status")
    return checked


def settle_dialect(options: Options, server_name: str) -> Options:
    """Return *options* with a dialect: the one given, or the one of the server's name.

    A server of no known name is taken for Triton, whose dialect is the fullest.
    """
    if options.get("dialect", "auto") != "auto":
        return options
    return {**options, "dialect": dialect_of(server_name) or "triton"}


SPEC = ProtocolSpec(
    name="oip",
    http=HttpBinding(codec=HttpCodec, prefixes=("/v2",)),
    grpc=GrpcBinding(codec=GrpcCodec, methods=METHODS, file_descriptors=file_descriptors),
    options=check_options,
    settle=settle_dialect,
)
