"""A request of any protocol as a line for a shell: `curl` over HTTP, `gateway infer` elsewhere."""

import base64
import json
import shlex
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.cli.calling.tensors import json_of
from gateway.cli.serving.sidecar import sidecar_config
from gateway.ir.calls import InferRequest
from gateway.settings.units import Url
from gateway.transports.http.headers import FRAMING
from gateway.wire.http import HttpRequest

STREAM_ADDRESS: Final = "127.0.0.1:18002"
"""Where lines look for a protocol over a byte stream, which has no address by default."""

_LONGEST_TEXT: Final = 2_000
_LONGEST_LINE: Final = 32_000


def client_line(scheme: str, wire: object, call: InferRequest, upstream: Url) -> str:
    """Return a line for bash that sends a request to `gateway serve --upstream URL`.

    Args:
        scheme: Protocol and carrier, such as `graphpipe+http`.
        wire: The request as its protocol writes it.
        call: What the request says, as a call.
        upstream: The URL of the server.

    Returns "" for a request that no line has room for.
    """
    listener = sidecar_config([str(upstream)])["listeners"][0]
    address = listener.get(scheme.partition("+")[2], STREAM_ADDRESS)
    if isinstance(wire, HttpRequest):
        line = curl_line(wire, ["curl", "-sS", "--fail-with-body"], f"http://{address}", "-o -")
    else:
        values = (_value(json_of(each)) for each in call.inputs)
        assert call.model is not None  # noqa: S101  # an inference of a client
        parts = [f"{scheme}://{address}", shlex.quote(call.model.name), *values]
        line = " ".join(["gateway infer", *parts])
    return line if len(line) <= _LONGEST_LINE else ""


def curl_line(wire: HttpRequest, command: Sequence[str], server: str, binary: str = "") -> str:
    """Return a line for bash that sends a request over HTTP.

    Args:
        wire: The request.
        command: Curl, with its flags.
        server: The URL of the server, with its path.
        binary: Further flags for a body that is no text, since the response may be none either.
    """
    body = b"".join(wire.body)
    query = f"?{wire.query}" if wire.query else ""
    own = [(name, value) for name, value in wire.headers if name.lower() not in FRAMING]
    words = [*command]
    if wire.method != "GET" and not any(name.lower() == "content-type" for name, _ in own):
        own.append(("Content-Type", ""))  # or curl adds that of forms
    for name, value in own:
        words += ["-H", f"{name}: {value}".rstrip()]
    line = shlex.join([*words, f"{server}{wire.path}{query}"])
    if wire.method == "GET":
        return line
    if len(body) <= _LONGEST_TEXT and (text := _text_of(body)) is not None:
        return f"{line} --data-binary {shlex.quote(text)}"
    return f"{_printing(body)} | {line} --data-binary @- {binary}".rstrip()


def _value(tensor: Mapping[str, Any]) -> str:
    """Return the flags of an input; some servers do not tell its datatype."""
    name, text = tensor["name"], json.dumps(tensor["data"])
    datatype = shlex.quote(f"{name}={tensor['datatype']}")
    if len(text) <= _LONGEST_TEXT:
        return f"--datatype {datatype} -i {shlex.quote(f'{name}={text}')}"
    return f"--datatype {datatype} -i {shlex.quote(f'{name}=@')}<({_printing(text.encode())})"


def _text_of(body: bytes) -> str | None:
    """Return a body as text that a shell can quote; None for any other."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and not text.startswith("@") else None


def _printing(body: bytes) -> str:
    """Return a command that prints *body*, in which repeated values take little room."""
    packed = base64.b64encode(zlib.compress(body, 9)).decode()
    program = (
        "import base64, sys, zlib; "
        f'sys.stdout.buffer.write(zlib.decompress(base64.b64decode("{packed}")))'
    )
    return f"python3 -c {shlex.quote(program)}"
