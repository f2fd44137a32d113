"""An independent grps server over brpc, which prints its address and serves until it is ended.

    python brpc_server.py

It is `tests/cases/brpc_oracle.py` and the standard library: nothing of the gateway is imported. It
does what clients of brpc must expect: answers in another order than the questions, in every
compression, with attachments, under one connection. A request that says no time is refused.
"""

import itertools
import socket
import struct
import sys
import threading
import time
from contextlib import suppress

from tests.cases import brpc_oracle as oracle
from tests.cases.brpc_oracle import Message, Tensor

_OK = oracle.put(1, oracle.put(1, 200) + oracle.put(2, "OK") + oracle.put(3, oracle.SUCCESS))
_METADATA = "models:\n" + "".join(
    f"- {{name: {name}, version: '1'}}\n"
    for name in ("add_sub", "fail_always", *(f"identity_{kind}" for kind in ("fp32", "bytes")))
)


def failure(code: int, text: str) -> bytes:
    """Write a message that says why not."""
    return oracle.put(1, oracle.put(1, code) + oracle.put(2, text) + oracle.put(3, oracle.FAILURE))


def predict(message: Message) -> bytes:
    """Answer as the model that is named does."""
    name = message.model.removesuffix("-1")
    if name.startswith("identity_"):
        return _OK + identity(message)
    if name == "fail_always":
        return failure(500, "failed on purpose")
    if name != "add_sub":
        return failure(500, f"[ExecutorException] Not found model: {message.model}")
    if len(message.tensors or ()) != len(("INPUT0", "INPUT1")):
        return failure(400, "add_sub needs INPUT0 and INPUT1")
    left, right = message.tensors or ()
    pairs = list(zip(left.values, right.values, strict=True))
    sums, differences = tuple(a + b for a, b in pairs), tuple(a - b for a, b in pairs)
    outputs = [
        Tensor("OUTPUT0", left.kind, left.shape, sums),
        Tensor("OUTPUT1", left.kind, left.shape, differences),
    ]
    return _OK + oracle.message(tensors=outputs)


def identity(message: Message) -> bytes:
    """Write what came, in the form in which it came."""
    if message.text is not None:
        return oracle.message(text=message.text)
    if message.data is not None:
        return oracle.message(data=message.data)
    (tensor,) = message.tensors or ()
    return oracle.message(tensors=[Tensor("OUTPUT0", tensor.kind, tensor.shape, tensor.values)])


def answered(method: str, message: Message) -> bytes:
    """Return the message that answers a question."""
    if method == "Predict":
        return predict(message)
    if method == "ServerMetadata":
        return oracle.message(text=_METADATA)  # as the real server: without a Status
    if method == "ModelMetadata":
        return _OK + oracle.message(text=f"name: {message.text}\nversion: '1'\n")
    return _OK


class Connection:
    """Serves one connection; each question is answered on a thread of its own."""

    _kinds = itertools.cycle([oracle.NONE, oracle.SNAPPY, oracle.GZIP, oracle.ZLIB])

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._writing = threading.Lock()

    def serve(self) -> None:
        """Read frames until the client leaves."""
        buffer = b""
        with suppress(OSError):
            while piece := self._sock.recv(1 << 16):
                buffer += piece
                while (
                    len(buffer) >= 12 and len(buffer) >= 12 + struct.unpack_from(">I", buffer, 4)[0]
                ):
                    body, meta = struct.unpack_from(">II", buffer, 4)
                    whole, buffer = buffer[12 : 12 + body], buffer[12 + body :]
                    threading.Thread(target=self._answer, args=(whole, meta), daemon=True).start()

    def _answer(self, whole: bytes, size: int) -> None:
        meta = oracle.fields(whole[:size])
        request = oracle.fields(meta[1][-1])
        attached = meta.get(5, [0])[-1]
        data = whole[size : len(whole) - attached]
        message = oracle.read_message(oracle.unpack(meta.get(3, [0])[-1], data))
        number, kind = meta[4][-1], next(self._kinds)
        assert request[1][-1].decode() == oracle.FULL_NAME
        code, text, body = 0, "", b""
        if 8 not in request:
            code, text = 1003, "no timeout_ms"
        else:
            body = oracle.pack(kind, answered(request[2][-1].decode(), message))
        # Those with even numbers overtake the others.
        time.sleep(0.02 * (number % 2))
        response = oracle.put(1, code) + (oracle.put(2, text) if text else b"")
        head = oracle.put(2, response) + oracle.put(3, kind) + oracle.put(4, number)
        attachment = b"" if code else b"an attachment that grps skips"
        head += oracle.put(5, len(attachment)) if attachment else b""
        with self._writing, suppress(OSError):
            self._sock.sendall(oracle.frame(head, body, attachment))


def main() -> None:
    """Say where, and serve."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            sock, _ = listening.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=Connection(sock).serve, daemon=True).start()


if __name__ == "__main__":
    assert not any(name.split(".")[0] == "gateway" for name in sys.modules)
    main()
