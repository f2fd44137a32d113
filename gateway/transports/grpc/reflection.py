"""The gRPC reflection service, as a frontend with raw messages.

It serves serialized file descriptors and reads only the names in them, so each protocol may have a
descriptor pool of its own: the servicer of grpcio serves one pool, and two protocols may define
equal names.

Source: grpc/reflection/v1/reflection.proto, whose messages v1alpha shares;
google/protobuf/descriptor.proto.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gateway.ir.context import Client
from gateway.ir.errors import Forbidden, GatewayError
from gateway.transports.contract import GrpcFrontend, GrpcMount
from gateway.transports.grpc.health import refused
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from gateway.wire.protobuf.wire_format import (
    LEN,
    VARINT,
    Value,
    WireError,
    fields,
    put_bytes,
    put_text,
    put_varint,
    tag,
    text,
    varint,
)

# Of a FileDescriptorProto.
_NAME = tag(1, LEN)
_PACKAGE = tag(2, LEN)
_DEPENDENCY = tag(3, LEN)
# Where names are nested, by field number; a "leaf" has no names of interest.
_INSIDE: dict[str, dict[int, str]] = {
    "file": {
        tag(4, LEN): "message",
        tag(5, LEN): "enum",
        tag(6, LEN): "service",
        tag(7, LEN): "leaf",
    },
    "message": {
        tag(2, LEN): "leaf",
        tag(3, LEN): "message",
        tag(4, LEN): "enum",
        tag(6, LEN): "leaf",
    },
    "enum": {tag(2, LEN): "leaf"},
    "service": {tag(2, LEN): "leaf"},
    "leaf": {},
}

# Of a ServerReflectionRequest.
_BY_NAME = tag(3, LEN)
_BY_SYMBOL = tag(4, LEN)
_BY_EXTENSION = tag(5, LEN)
_EXTENSIONS = tag(6, LEN)
_SERVICES = tag(7, LEN)
_QUESTIONS = frozenset({_BY_NAME, _BY_SYMBOL, _BY_EXTENSION, _EXTENSIONS, _SERVICES})
_MAX_FIELDS = 64

_FIRST = varint(tag(1, LEN))
_SECOND = varint(tag(2, LEN))
_CODE = varint(tag(1, VARINT))
_ORIGINAL = varint(tag(2, LEN))
_FILES_ANSWER = varint(tag(4, LEN))
_EXTENSIONS_ANSWER = varint(tag(5, LEN))
_SERVICES_ANSWER = varint(tag(6, LEN))
_ERROR_ANSWER = varint(tag(7, LEN))


@dataclass(frozen=True, slots=True)
class _File:
    """One file, and the set that has its imports."""

    name: str
    data: bytes
    imports: tuple[str, ...]
    of: dict[str, _File]


class ServiceSchemas:
    """What some clients see of services, by reflection.

    Args:
        services: The full names that clients see.
        sets: Serialized FileDescriptorProtos, one closed set for each protocol.  The first set that
            defines a name serves it.

    Raises:
        WireError: A file is not a FileDescriptorProto.
    """

    def __init__(self, services: Iterable[str], sets: Iterable[Sequence[bytes]]) -> None:
        self._services = sorted(services)
        self._by_name: dict[str, _File] = {}
        self._by_symbol: dict[str, _File] = {}
        for files in sets:
            self._add(files)

    def answer(self, message: bytes) -> bytes:
        """Return the response to a serialized ServerReflectionRequest.

        Raises:
            WireError: The request is malformed.
        """
        question, value = _question(memoryview(message))
        head = bytearray()
        put_bytes(head, _ORIGINAL, message)
        if question == _SERVICES:
            _put_services(head, self._services)
        elif question == _BY_NAME:
            _put_files(head, self._by_name.get(text(value, "file name")))
        elif question == _BY_SYMBOL:
            _put_files(head, self._by_symbol.get(text(value, "symbol")))
        elif question == _EXTENSIONS and text(value, "type") in self._by_symbol:
            _put_extensions(head, text(value, "type"))
        elif question is None:
            _put_error(head, GrpcStatus.INVALID_ARGUMENT, "the request asks nothing")
        else:
            _put_error(head, GrpcStatus.NOT_FOUND, "not found")
        return bytes(head)

    def _add(self, files: Sequence[bytes]) -> None:
        of: dict[str, _File] = {}
        for data in files:
            found = fields(memoryview(data))
            names = [text(value, "file name") for key, value in found if key == _NAME]
            imports = tuple(text(value, "import") for key, value in found if key == _DEPENDENCY)
            file = _File(names[-1] if names else "", data, imports, of)
            of[file.name] = file
            self._by_name.setdefault(file.name, file)
            package = [text(value, "package") for key, value in found if key == _PACKAGE]
            for symbol in _nested_names(found, "file", package[-1] if package else ""):
                self._by_symbol.setdefault(symbol, file)


class Reflection(GrpcFrontend):
    """Handles grpc.reflection v1 and v1alpha.

    Args:
        schemas: Returns what a client sees; raises Forbidden if it may see nothing.
    """

    def __init__(self, schemas: Callable[[Client], ServiceSchemas]) -> None:
        self._schemas = schemas

    @property
    def mount(self) -> GrpcMount:
        """The service, under both of its names, for a server's *extras*."""
        methods = {
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo": (
                MethodKind.BIDIRECTIONAL
            )
            for version in ("v1", "v1alpha")
        }
        return GrpcMount(methods, self)

    async def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
        """Yield the response to one request of a stream; a malformed request ends the stream."""
        try:
            yield GrpcResponse((self._schemas(wire.client).answer(wire.view.tobytes()),))
        except Forbidden as error:
            yield GrpcResponse(status=GrpcStatus.PERMISSION_DENIED, details=error.message)
        except WireError as error:
            details = f"not a ServerReflectionRequest: {error}"
            yield GrpcResponse(status=GrpcStatus.INVALID_ARGUMENT, details=details)

    def reject(self, error: GatewayError, /) -> GrpcResponse:
        """Return the error for a request that was not read completely."""
        return refused(error)


def _nested_names(found: list[tuple[int, Value]], kind: str, scope: str) -> Iterator[str]:
    """Yield the full names of everything that is defined in one descriptor."""
    kinds = _INSIDE[kind]
    for key, value in found:
        inner = kinds.get(key)
        if inner is None:
            continue
        children = fields(value)
        for name in (text(each, "name") for number, each in children if number == _NAME):
            full = f"{scope}.{name}" if scope else name
            yield full
            # The values of an enum are in its parent scope, as in C++.
            yield from _nested_names(children, inner, scope if inner == "enum" else full)


def _question(view: memoryview) -> tuple[int | None, Value]:
    """Return the tag and value of the request; the last of several, as protobuf reads a oneof."""
    questions = [field for field in fields(view, _MAX_FIELDS) if field[0] in _QUESTIONS]
    return questions[-1] if questions else (None, b"")


def _closure(file: _File) -> list[bytes]:
    """Yield *file* and all its imports, each once."""
    seen = {file.name: file}
    waiting = [file]
    while waiting:
        for name in waiting.pop().imports:
            imported = file.of.get(name)
            if imported is not None and name not in seen:
                seen[name] = imported
                waiting.append(imported)
    return [each.data for each in seen.values()]


def _put_files(head: bytearray, file: _File | None) -> None:
    if file is None:
        _put_error(head, GrpcStatus.NOT_FOUND, "not found")
        return
    inner = bytearray()
    for data in _closure(file):
        put_bytes(inner, _FIRST, data)
    put_bytes(head, _FILES_ANSWER, inner)


def _put_services(head: bytearray, services: Iterable[str]) -> None:
    inner = bytearray()
    for name in services:
        service = bytearray()
        put_text(service, _FIRST, name)
        put_bytes(inner, _FIRST, service)
    put_bytes(head, _SERVICES_ANSWER, inner)


def _put_extensions(head: bytearray, type_name: str) -> None:
    """Write an empty list for a known type: no schema here defines extensions."""
    inner = bytearray()
    put_text(inner, _FIRST, type_name)
    put_bytes(head, _EXTENSIONS_ANSWER, inner)


def _put_error(head: bytearray, status: GrpcStatus, why: str) -> None:
    inner = bytearray()
    put_varint(inner, _CODE, status)
    put_text(inner, _SECOND, why)
    put_bytes(head, _ERROR_ANSWER, inner)
