"""Hostile SeldonMessages: no 5xx for a client's fault, bounded memory, and others wait 0.5 s."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.hostile.costly import Grpc, Http, Message, check_delay
from tests.hostile.grpc_cases import varint
from tests.hostile.process import Gateway, running
from tests.hostile.wire import post

pytestmark = pytest.mark.hostile

PREDICT = "/seldon.protos.Seldon/Predict"
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=b"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with the default limits and models of one array."""
    with running("tests/hostile/seldon.yaml") as gateway:
        message(b'{"data":{"ndarray":[1]}}', "tiny").send(gateway)
        yield gateway


def message(body: bytes, model: str = "numbers", kind: str = JSON) -> Http:
    return Http(post(body, f"Content-Type: {kind}", path=f"/seldon/ns/{model}/predict"))


def ndarray(item: bytes, count: int, last: bytes = b"") -> bytes:
    return b'{"data":{"ndarray":[%b%b]}}' % (b",".join([item] * count), last)


def values(item: bytes, count: int, shape: bytes) -> bytes:
    numbers = b",".join([item] * count)
    return b'{"data":{"tensor":{"shape":[%b],"values":[%b]}}}' % (shape, numbers)


def part(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + varint(len(data)) + data


def listed(*entries: bytes) -> bytes:
    """Return a SeldonMessage with an ndarray of values."""
    return part(3, part(3, b"".join(part(1, each) for each in entries)))


NUMBER = b"\x11" + bytes(8)
TEXT = part(3, b"a")

# What costs much, with the status that is expected.
COSTLY: dict[str, tuple[Callable[[], Message], str]] = {
    "rows": (lambda: message(ndarray(b"[0.5,1,2]", 300_000)), "200"),
    "many_rows": (lambda: message(ndarray(b"[0.5,1,2]", 1_000_000)), "413"),
    "a_long_tensor": (lambda: message(values(b"1", 6_000_000, b"1,6000000")), "200"),
    "late_fraction": (lambda: message(ndarray(b"1", 5_000_000, b",0.5"), "tiny"), "400"),
    "late_large": (lambda: message(ndarray(b"1", 900_000, b",1e300"), "tiny"), "400"),
    "late_large_of_many": (lambda: message(ndarray(b"1", 5_000_000, b",1e300"), "tiny"), "400"),
    "large_of_many": (lambda: message(values(b"1e30", 1_100_000, b"1,1100000")), "200"),
    "late_list": (lambda: message(ndarray(b"1", 900_000, b",[1]"), "tiny"), "400"),
    "late_null": (lambda: message(ndarray(b"1", 900_000, b",null"), "tiny"), "400"),
    "texts": (lambda: message(ndarray(b'"a"', 900_000), "bytes"), "200"),
    "too_many_texts": (lambda: message(ndarray(b'"a"', 1_100_000), "bytes"), "413"),
    "columns": (lambda: message(ndarray(b"[1,2]", 300_000), "split"), "200"),
    "nested": (lambda: message(b'{"data":{"ndarray":%b%b}}' % (b"[" * 9**5, b"]" * 9**5)), "413"),
    "keys": (
        lambda: message(b"{%b}" % b",".join(b'"k%d":1' % at for at in range(200_000))),
        "413",
    ),
    "tags": (
        lambda: message(
            b'{"meta":{"tags":{%b}},"strData":""}'
            % b",".join(b'"k%d":1' % at for at in range(3000)),
            "bytes",
        ),
        "413",
    ),
    "json": (lambda: message(b'{"jsonData":[%b1]}' % (b"1," * 900_000), "bytes"), "200"),
    "escapes": (lambda: message(b"json=" + b"%20" * 3_000_000, kind=FORM), "400"),
    "fields": (lambda: message(b"a&" * 5_000_000, kind=FORM), "400"),
    "parts": (lambda: message(b"--b" * 3_000_000, kind=MULTIPART), "413"),
    "a_tensor_proto": (
        lambda: message(
            b'{"data":{"tftensor":{"dtype":"DT_INT8","tensorShape":{"dim":[{"size":"900000"}]},'
            b'"intVal":[%b1]}}}' % (b"1," * 899_999),
            "tiny",
        ),
        "200",
    ),
    "grpc_numbers": (lambda: Grpc(listed(*[NUMBER] * 900_000), PREDICT), "OK"),
    "grpc_texts": (lambda: Grpc(listed(*[TEXT] * 300_000), PREDICT), "INVALID_ARGUMENT"),
    "grpc_too_many": (lambda: Grpc(listed(*[TEXT] * 1_100_000), PREDICT), "RESOURCE_EXHAUSTED"),
    "grpc_names": (
        lambda: Grpc(part(3, part(1, b"a") * 900_000 + part(3, part(1, NUMBER))), PREDICT),
        "OK",
    ),
    "grpc_unpacked": (
        lambda: Grpc(part(3, part(2, b"\x08\x01" + b"\x11" + bytes(8)) * 300_000), PREDICT),
        "INVALID_ARGUMENT",
    ),
    "grpc_fields": (lambda: Grpc(part(5, b"a") * 900_000, PREDICT), "INVALID_ARGUMENT"),
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_messages_delay_no_other_client(gateway: Gateway, name: str) -> None:
    """Messages that cost much are refused early, or are read off the event loop."""
    check_delay(gateway, *COSTLY[name])


WRONG = [
    b"",
    b"null",
    b"[1]",
    b"{",
    b"\xff",
    b"{}",
    b'{"data":null}',
    b'{"data":[]}',
    b'{"data":{"ndarray":{"a":1}}}',
    b'{"data":{"ndarray":[1e400]}}',
    b'{"data":{"ndarray":[[[[null]]]]}}',
    b'{"data":{"ndarray":[{"b64":"AA=="}]}}',
    b'{"data":{"ndarray":[1],"ndarray":[2]}}',
    b'{"data":{"tensor":{}}}',
    b'{"data":{"tensor":{"shape":[1,1e9],"values":[1]}}}',
    b'{"data":{"tensor":{"shape":[-1],"values":[1]}}}',
    b'{"data":{"tensor":{"shape":[4294967297],"values":[1]}}}',
    b'{"data":{"tensor":{"shape":[2147483647,2147483647],"values":[]}}}',
    b'{"data":{"tensor":{"shape":[0,9223372036854775807],"values":[]}}}',
    b'{"data":{"tensor":{"shape":["1"],"values":[1]}}}',
    b'{"data":{"tensor":{"shape":[1],"values":["1"]}}}',
    b'{"data":{"tensor":{"shape":[1],"values":[[1]]}}}',
    b'{"data":{"tensor":{"shape":[2],"values":[1,[2]]}}}',
    b'{"data":{"tftensor":{"dtype":"DT_STRING","stringVal":["%"]}}}',
    b'{"data":{"tftensor":{"dtype":99}}}',
    b'{"data":{"tftensor":{"tensorShape":{"dim":[{"size":"-1"}]}}}}',
    b'{"data":{"tftensor":{"dtype":"DT_FLOAT","floatVal":[1e39]}}}',
    b'{"data":{"names":{},"ndarray":[]}}',
    b'{"binData":"%"}',
    b'{"binData":1}',
    b'{"strData":"\\ud800"}',
    b'{"meta":[],"strData":"x"}',
    b'{"meta":{"puid":"\\n"},"strData":"x"}',
    b'{"meta":{"tags":{"\\n":1}},"strData":"x"}',
]
PADDING = b" " * 9000


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
def test_wrong_messages_are_errors_of_the_client(gateway: Gateway, body: bytes) -> None:
    """A fault of the client has a status below 500, whichever parser reads it."""
    for model in ("split", "numbers", "bytes", "tiny"):
        for text in (body, body + PADDING):
            status = int(message(text, model).send(gateway).split()[0])
            assert 400 <= status < 500, (model, status)
