"""Asks a server of Open Inference whether it is ready, with the standard library and HTTP/2 alone.

A container asks every few seconds, and the client of the other commands takes a second of CPU time
for its imports. What is unusual, such as an error of the server, is left to that client.

Source: Open Inference Protocol, "Health" and "GRPCInferenceService"; RFC 9113.
"""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection, HTTPException
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from gateway.cli.calling.liveness import unix_connection
from gateway.cli.calling.server_flags import ServerFlags
from gateway.ir.context import Metadata
from gateway.ir.errors import ConnectFailure, DeadlineExceeded, Forbidden
from gateway.settings.units import Url

if TYPE_CHECKING:
    from gateway.config.tls import TlsConfig

_OK: Final = 200
_NOT_READY: Final = frozenset({*range(400, 500), 503})
_REFUSED: Final = frozenset({401, 403, 407})
"""Statuses that say nothing about the server or the model."""
_LEAST_S: Final = 0.001
_BODY_BYTES: Final = 65_536
_SHORT_NAME: Final = 128
_FALSE: Final = (False, "false", "False")
_REPLIES: Final = {b"\x08\x01": True, b"\x08\x00": False, b"": False}
"""What the messages ServerReadyResponse and ModelReadyResponse mean."""
_SERVICE: Final = "/inference.GRPCInferenceService/"


class _Question(NamedTuple):
    model: str | None
    version: str
    metadata: Metadata
    end: float


class _Unusual(Exception):  # no error: another client goes on
    """A response that this client does not understand."""


def ask_ready(
    url: Url, model: str | None, version: str, timeout_s: float, server: ServerFlags
) -> bool | None:
    """Return whether a server or its model is ready; None if another client must find out.

    Raises:
        ConnectFailure: The server cannot be reached.
        Forbidden: It refuses the question, without a right credential, for example.
        DeadlineExceeded: It does not respond in time.
    """
    if url.protocol != "oip" or url.carrier not in {"http", "grpc"} or url.path:
        return None
    ask = _ask_http if url.carrier == "http" else _ask_grpc
    end = monotonic() + timeout_s
    try:
        if url.socket:
            sock = unix_connection(url.socket, timeout_s)
        else:
            sock = socket.create_connection((url.host, url.port), timeout_s)
    except TimeoutError as error:
        raise _late(timeout_s) from error
    except OSError as error:
        raise ConnectFailure(f"cannot connect to {url.authority}: {error}") from error
    try:
        if url.tls or server.tls is not None:
            sock = _with_tls(sock, url, server.tls)
        return ask(sock, url, _Question(model, version, server.metadata, end))
    except TimeoutError as error:
        raise _late(timeout_s) from error
    except (_Unusual, OSError, ValueError, HTTPException):
        return None
    finally:
        sock.close()


def _with_tls(sock: socket.socket, url: Url, tls: TlsConfig | None) -> socket.socket:
    """Return a connection with TLS, which replaces *sock*.

    Raises:
        OSError: The handshake fails.
        ValueError: A file has invalid content.
    """
    from gateway.transports.net.tls import ClientTls, client_context  # noqa: PLC0415  # rarely

    files = ClientTls()
    if tls is not None:
        files = ClientTls(ca=tls.ca, cert=tls.cert, key=tls.key, verify=tls.verify)
    context = client_context(files, ("h2",) if url.carrier == "grpc" else ())
    return context.wrap_socket(sock, server_hostname=url.host)


def _late(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"no response within {timeout_s:g} s")


def _ask_http(sock: socket.socket, url: Url, question: _Question) -> bool:
    path = "/v2/health/ready"
    if question.model is not None:
        path = f"/v2/models/{quote(question.model, safe='')}"
        version = quote(question.version, safe="")
        path += f"/versions/{version}/ready" if version else "/ready"
    connection = HTTPConnection(url.host or "localhost", url.port)
    connection.sock = sock
    sock.settimeout(max(_LEAST_S, question.end - monotonic()))
    connection.request("GET", path, headers=dict(question.metadata))
    response = connection.getresponse()
    body = response.read(_BODY_BYTES)
    if response.status in _REFUSED:
        raise Forbidden(f"the server refuses the question: {_error_of(response.status, body)}")
    if response.status in _NOT_READY:
        return False
    if response.status != _OK:
        raise _Unusual
    return _says_ready(body)


def _error_of(status: int, body: bytes) -> str:
    """Return the error of a response as text."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    text = document.get("error") if isinstance(document, dict) else None
    return f"HTTP status {status}: {text}" if isinstance(text, str) else f"HTTP status {status}"


def _says_ready(body: bytes) -> bool:
    """Return whether a response of status 200 means ready: unless its JSON says otherwise."""
    try:
        document = json.loads(body)
    except ValueError:  # most servers send no body
        return True
    return not (isinstance(document, dict) and document.get("ready") in _FALSE)


def _ask_grpc(sock: socket.socket, url: Url, question: _Question) -> bool:
    from gateway.cli.calling.unary_call import call_unary  # noqa: PLC0415  # only for gRPC

    method, message = "ServerReady", b""
    if question.model is not None:
        method, message = "ModelReady", _field(1, question.model) + _field(2, question.version)
    path, metadata = _SERVICE + method, question.metadata
    reply = call_unary(
        sock, url.authority if url.host else "localhost", path, message, metadata, question.end
    )
    if reply is None or reply not in _REPLIES:
        raise _Unusual
    return _REPLIES[reply]


def _field(number: int, text: str) -> bytes:
    """Return a short text as a field of a protobuf message."""
    raw = text.encode()
    if len(raw) >= _SHORT_NAME:
        raise _Unusual
    return bytes((number << 3 | 2, len(raw))) + raw if raw else b""
