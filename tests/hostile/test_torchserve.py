"""Hostile bodies and forms of TorchServe: no 5xx for a client's fault, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pytest

from gateway.protocols.torchserve.grpc.codec import LIST, METHODS, PING_METHOD, SESSION
from tests.hostile.costly import Http, check_delay
from tests.hostile.process import Gateway, running
from tests.hostile.wire import post

pytestmark = pytest.mark.hostile

JSON, FORM, MULTIPART = (
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=B",
)
PART = b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
SECONDS = 30.0


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with the default limits and models of items."""
    with running("tests/hostile/torchserve.yaml") as gateway:
        message(b"[[1, 2, 3]]").send(gateway)
        yield gateway


def message(body: bytes, model: str = "numbers", kind: str = JSON) -> Http:
    return Http(post(body, f"Content-Type: {kind}", path=f"/predictions/{model}"))


def parts(*fields: tuple[bytes, bytes]) -> bytes:
    return b"".join([PART % each for each in fields]) + b"--B--\r\n"


# What costs much, with the status that is expected.
COSTLY: dict[str, tuple[Callable[[], Http], str]] = {
    "numbers": (lambda: message(b"[%b]" % b",".join([b"[1,2,0.5]"] * 300_000)), "200"),
    "too_many_numbers": (lambda: message(b"[%b]" % b",".join([b"[1,2,0.5]"] * 1_800_000)), "413"),
    "wrong_at_the_end": (lambda: message(b"[%b,[1,2]]" % b",".join([b"[1,2,3]"] * 300_000)), "400"),
    "untyped": (
        lambda: message(b"[%b]" % b",".join([b"[1,2,3]"] * 300_000), kind="application/x"),
        "200",
    ),
    "bytes_like_json": (lambda: message(b"[" * 9_000_000, "bytes", "image/png"), "200"),
    "bytes_of_numbers": (lambda: message(b"[%b1" % (b"1," * 4_000_000), "bytes", "x/y"), "200"),
    "too_many_bytes": (lambda: message(b"\xff" * 17_000_000, "bytes", "x/y"), "413"),
    "many_fields": (lambda: message(b"&".join([b"a=1"] * 2_000_000), "tiny", FORM), "413"),
    "a_long_field": (lambda: message(b"data=" + b"%41" * 3_000_000, "bytes", FORM), "200"),
    "many_parts": (lambda: message(parts(*[(b"a", b"1")] * 100_000), "tiny", MULTIPART), "413"),
    "boundaries": (lambda: message(b"\r\n--B" * 1_500_000, "tiny", MULTIPART), "400"),
    "no_boundary": (lambda: message(b"\r\n--C" * 1_500_000, "tiny", MULTIPART), "400"),
    "deep": (lambda: message(b"[" * 100_000 + b"]" * 100_000), "413"),
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_items_delay_no_other_client(gateway: Gateway, name: str) -> None:
    """Bodies that cost much are refused early, or are read off the event loop."""
    check_delay(gateway, *COSTLY[name])


WRONG: list[tuple[bytes, str]] = [
    *[
        (body, JSON)
        for body in (
            b"",
            b"null",
            b"{",
            b"[1",
            b"\xff",
            b"{}",
            b'{"": [1]}',
            b'{"a": [1]}',
            b'{"INPUT0": [1], "INPUT0": [2]}',
            b'{"INPUT0": {"INPUT0": [1]}}',
            b"[1e400]",
            b"[[1, [2], 3]]",
            b'["\\ud800"]',
            b"[[true, 1, 2]]",
            b"1",
            b'{"a\\u0000": 1}',
        )
    ],
    *[
        (body, FORM)
        for body in (
            b"",
            b"=",
            b"&&&",
            b"%ff=1",
            b"INPUT0=%00",
            b"[[1,2,3]]",
            b"data=",
            b"INPUT0=[",
        )
    ],
    *[
        (body, MULTIPART)
        for body in (
            b"",
            b"--B--",
            b"--B\r\n",
            b"--B\r\n\r\n",
            b"--B\r\n\r\n\r\n--B--",
            parts((b"\xff", b"1")),
            parts((b"", b"1")),
            parts((b"INPUT0", b'{"INPUT0": [1]}')),
            parts((b"INPUT0", b"\x00")),
            parts((b"INPUT0", b"[1.5]")),
            parts((b"a", b"1"), (b"b", b"2")),
        )
    ],
    (b"x", "multipart/form-data"),
    (b"x", 'multipart/form-data; boundary=""'),
    (b"x", "multipart/form-data; boundary=" + "B" * 71),
]


@pytest.mark.parametrize(("body", "kind"), WRONG, ids=range(len(WRONG)))
def test_wrong_items_are_errors_of_the_client(gateway: Gateway, body: bytes, kind: str) -> None:
    """A fault of the client has a status below 500, whatever the model takes."""
    for model in ("numbers", "tiny"):
        status = int(message(body, model, kind).send(gateway).split()[0])
        assert 400 <= status < 500, (model, status)


READ = [each for each in METHODS if each not in (PING_METHOD, LIST, SESSION)]
ERRORS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
)


@pytest.mark.parametrize("method", READ)
@pytest.mark.parametrize("data", [b"\xff", b"\x1a\x02\x0a\xff", b"\x0a\x01m\x1a\x05\x0a\x01a\x12"])
def test_messages_that_cannot_be_read_are_errors_of_the_client(
    gateway: Gateway, method: str, data: bytes
) -> None:
    """No method has INTERNAL, as the server has for all."""
    with grpc.insecure_channel(gateway.address("main.grpc")) as channel:
        call = channel.unary_stream(method)  # which a unary method answers as well
        with pytest.raises(grpc.RpcError) as caught:
            list(call(data, timeout=SECONDS))
    assert caught.value.code() in ERRORS
