"""Errors over gRPC to and from a status with a text; `streaming.py` has those inside of a stream.

`../errors.py` has the tables.

Source: Open Inference Protocol, gRPC API; docs/protocols/open-inference.md, "16. Errors".
"""

from typing import Final

from gateway.protocols.oip.errors import grpc_error_class, text_of
from gateway.protocols.oip.grpc.context import NAME
from gateway.wire.errors import GRPC_STATUS
from gateway.wire.grpc import GrpcStatus
from gateway.wire.status_errors import StatusErrorForm

# Statuses of servers for a model that is not ready: Triton responds with OK and false, KServe
# with NOT_FOUND, MLServer with UNKNOWN; other statuses are failures.
NOT_READY: Final = frozenset(
    {
        GrpcStatus.UNKNOWN,
        GrpcStatus.INVALID_ARGUMENT,
        GrpcStatus.NOT_FOUND,
        GrpcStatus.FAILED_PRECONDITION,
        GrpcStatus.UNAVAILABLE,
    }
)


ERRORS: Final = StatusErrorForm(
    codec=NAME,
    status=lambda error: GRPC_STATUS[error.code],
    error_class=grpc_error_class,
    text=text_of,
)
