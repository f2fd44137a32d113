"""Statuses between grpcio's type and that of `wire.grpc`."""

import grpc

from gateway.wire.grpc import GrpcStatus

CODE_OF: dict[GrpcStatus, grpc.StatusCode] = {
    GrpcStatus(code.value[0]): code for code in grpc.StatusCode
}
STATUS_OF: dict[grpc.StatusCode, GrpcStatus] = {code: status for status, code in CODE_OF.items()}
