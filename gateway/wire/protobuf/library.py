"""Messages that the protobuf library reads and writes: all that have no fast codec of their own."""

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError, Message

from gateway.ir.errors import MalformedMessage
from gateway.wire.grpc import GrpcResponse, MethodKind

M = TypeVar("M", bound=Message)


def parse(view: memoryview, kind: type[M]) -> M:
    """Read a message with the protobuf library; copies.

    Raises:
        MalformedMessage: The bytes are not such a message.
    """
    message = kind()
    try:
        message.ParseFromString(bytes(view))
    except DecodeError as error:
        raise MalformedMessage(
            f"{len(view)} bytes are not a message of type {kind.DESCRIPTOR.full_name}"
        ) from error
    return message


def reply_of(message: Message) -> GrpcResponse:
    """Return a response with one message."""
    return GrpcResponse((message.SerializeToString(),))


def methods_of(*files: FileDescriptor) -> Mapping[str, MethodKind]:
    """Return the methods of all services of files, by their full paths."""
    return {
        f"/{service.full_name}/{method.name}": MethodKind.BIDIRECTIONAL
        if method.client_streaming
        else MethodKind.SERVER_STREAM
        if method.server_streaming
        else MethodKind.UNARY
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }


def serialized_files(*files: FileDescriptor) -> tuple[bytes, ...]:
    """Return the serialized FileDescriptorProtos of files, for server reflection.

    Those that the files import precede them.
    """
    imported = [each for file in files for each in file.dependencies]
    return tuple([each.serialized_pb for each in dict.fromkeys((*imported, *files))])
