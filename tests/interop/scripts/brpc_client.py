"""What an independent client of grps over brpc does and sees, as one JSON document.

    python brpc_client.py HOST:PORT [CHECK ...]

It is `tests/cases/brpc_oracle.py` and the standard library: nothing of the gateway is imported.
Models are found at the address: `add_sub`, `identity_*`, `fail_always`.
"""

import http.client
import json
import math
import struct
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from tests.cases import brpc_oracle as oracle
from tests.cases.brpc_oracle import Answer, Client, Question, Tensor

LEFT = Tensor("INPUT0", oracle.INT32, (1, 16), tuple(range(16)))
RIGHT = Tensor("INPUT1", oracle.INT32, (1, 16), (3,) * 16)
ADD_SUB = oracle.message("add_sub", [LEFT, RIGHT])

_INTEGERS = {
    "uint8": (oracle.UINT8, 0, 2**8 - 1),
    "int8": (oracle.INT8, -(2**7), 2**7 - 1),
    "int16": (oracle.INT16, -(2**15), 2**15 - 1),
    "int32": (oracle.INT32, -(2**31), 2**31 - 1),
    "int64": (oracle.INT64, -(2**63), 2**63 - 1),
}
_FLOATS = {
    "fp16": (oracle.FLOAT16, 65504.0, 2.0**-24),
    "fp32": (oracle.FLOAT32, struct.unpack("<f", b"\xff\xff\x7f\x7f")[0], 2.0**-149),
    "fp64": (oracle.FLOAT64, sys.float_info.max, 5e-324),
}
KINDS: dict[str, tuple[int, tuple[Any, ...]]] = {
    **{name: (kind, (least, 0, 1, most)) for name, (kind, least, most) in _INTEGERS.items()},
    **{
        name: (kind, (0.0, -0.0, most, -most, least, math.inf, -math.inf, math.nan))
        for name, (kind, most, least) in _FLOATS.items()
    },
    "bytes": (oracle.STRING, ("ä".encode(), "模型".encode(), b"")),
}


def shape_of(name: str) -> tuple[int, ...]:
    """Return the shape of a datatype's values; some of Triton's models take two dimensions."""
    _, values = KINDS[name]
    return (1, len(values)) if name in ("fp32", "bytes") else (len(values),)


def printed(answer: Answer) -> Any:
    """Return an answer as values of JSON: an error code, a failure, or what was answered."""
    if answer.code:
        return {"code": answer.code, "text": answer.text}
    code, text, flag = answer.status
    if flag != oracle.SUCCESS:
        return {"status": code, "text": text}
    message = answer.message
    if message.text is not None:
        return {"text": message.text}
    if message.data is not None:
        return {"data": message.data.hex()}
    return [
        [tensor.name, tensor.kind, tensor.shape, [json_value(value) for value in tensor.values]]
        for tensor in message.tensors or ()
    ]


def json_value(value: Any) -> Any:
    """Return a value as JSON has it, no bit of a number lost."""
    if isinstance(value, bytes):
        return value.decode()
    return value.hex() if isinstance(value, float) else value


def checks(address: str) -> dict[str, Callable[[], Any]]:
    """Return everything that is done, by name."""

    def ask(question: Question, number: int | None = None) -> Any:
        with Client(address, 20) as client:
            return printed(client.ask(question, number))

    def predict(body: bytes, **fields: Any) -> Any:
        return ask(Question("Predict", body, **fields))

    def identity(name: str, compress: int) -> Any:
        kind, values = KINDS[name]
        tensor = Tensor("INPUT0", kind, shape_of(name), values)
        return predict(oracle.message(f"identity_{name}", [tensor]), compress=compress)

    found: dict[str, Callable[[], Any]] = {}
    for name in KINDS:
        for compress in range(4):
            found[f"{name} {compress}"] = partial(identity, name, compress)
    for compress in range(4):
        found[f"attachment {compress}"] = partial(
            predict, ADD_SUB, compress=compress, attachment=b"not for grps"
        )
    bare = [Tensor("", each.kind, each.shape, each.values) for each in (LEFT, RIGHT)]
    words = ("hello grps.", b"\xff\x00\xfe")
    return {
        **found,
        "unnamed": lambda: predict(oracle.message("add_sub", bare)),
        "short name": lambda: predict(ADD_SUB, service=oracle.SHORT_NAME),
        "text": lambda: predict(oracle.message("identity_bytes", text=words[0])),
        "bytes": lambda: predict(oracle.message("identity_bytes", data=words[1])),
        "large": lambda: _large(address),
        "at once": lambda: _at_once(address),
        "byte by byte": lambda: _byte_by_byte(address),
        "live": lambda: ask(Question("CheckLiveness")),
        "ready": lambda: ask(Question("CheckReadiness")),
        "model": lambda: ask(Question("ModelMetadata", oracle.message(text="add_sub"))),
        "unknown model": lambda: predict(oracle.message("nobody", [LEFT])),
        "missing input": lambda: predict(oracle.message("add_sub", [LEFT])),
        "failing model": lambda: predict(
            oracle.message("fail_always", [Tensor("INPUT0", oracle.INT32, (1,), (1,))])
        ),
        "unknown service": lambda: ask(Question("Predict", service="Other")),
        "unknown method": lambda: ask(Question("PredictStreaming")),
        "no message": lambda: predict(b"\xff"),
        "http": lambda: _http(address),
    }


def _large(address: str) -> Any:
    """Send 600 KB and return how many elements came back as they went."""
    values = tuple(float(number) for number in range(150_528))
    tensor = Tensor("INPUT0", oracle.FLOAT32, (224, 672), values)
    with Client(address, 20) as client:
        answer = client.ask(Question("Predict", oracle.message("identity_fp32", [tensor])))
    (output,) = answer.message.tensors or ()
    return sum(sent == received for sent, received in zip(values, output.values, strict=True))


def _at_once(address: str) -> Any:
    """Ask sixty questions before reading; return the numbers of the right answers."""
    right = []
    with Client(address, 20) as client:
        for number in range(60):
            tensor = Tensor("INPUT0", oracle.INT32, (1,), (number,))
            client.send(Question("Predict", oracle.message("identity_int32", [tensor])), number)
        for _ in range(60):
            answer = client.answer()
            assert answer is not None
            (output,) = answer.message.tensors or ()
            right += [answer.number] if output.values == (answer.number,) else []
    return sorted(right)


def _byte_by_byte(address: str) -> Any:
    with Client(address, 20) as client:
        for byte in Question("Predict", ADD_SUB).bytes(1):
            client.socket.sendall(bytes([byte]))
        answer = client.answer()
    assert answer is not None
    return printed(answer)


def _http(address: str) -> Any:
    """Ask by JSON on the same port, as brpc allows."""
    tensors = [
        {"name": each.name, "dtype": "DT_INT32", "shape": each.shape, "flat_int32": each.values}
        for each in (LEFT, RIGHT)
    ]
    body = json.dumps({"model": "add_sub", "gtensors": {"tensors": tensors}})
    with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
        connection.request("POST", "/GrpsBrpcService/Predict", body)
        answer = connection.getresponse()
        document = json.loads(answer.read())
    outputs = document["gtensors"]["tensors"]
    return [answer.status, *[[each["name"], each["flat_int32"]] for each in outputs]]


def main(address: str, *names: str) -> None:
    """Do what was asked for, or everything, and print what was seen."""
    all_checks = checks(address)
    seen = {name: all_checks[name]() for name in names or all_checks}
    assert not any(name.split(".")[0] == "gateway" for name in sys.modules)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
