"""Hostile requests in the protocol of an installed package, through its policy and its hooks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.extension.kit import install_toy
from tests.hostile.judge import bugs_of, check_text
from tests.hostile.process import Gateway, running
from tests.hostile.wire import Answer, ask, head, post

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that finds the package by its entry points; it must end without a bug in its log."""
    site = tmp_path_factory.mktemp("site")
    install_toy(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        with running("tests/hostile/toy.yaml") as gateway:
            yield gateway
            gateway.process.terminate()
            assert gateway.process.wait(20) == 0
        assert "Traceback" not in bugs_of(gateway)
        assert '"level":"error"' not in bugs_of(gateway)


def send(gateway: Gateway, data: bytes) -> Answer:
    response = ask(gateway.http, data)
    assert response is not None
    return response


BODIES: dict[str, tuple[bytes, int]] = {
    "letters": (b"one two", 400),
    "fraction": (b"1.5", 400),
    "json": (b'{"inputs": [1]}', 400),
    "nul": (b"1\x002", 400),
    "high_bytes": (b"\xff\xfe", 400),
    "beyond_64_bits": (b"9223372036854775808", 400),
    "digits_4301": (b"9" * 4301, 400),
    "digits_60k": (b"9" * 60_000, 400),
    "too_many": (b"1 " * 1001, 413),
    "too_many_and_wrong": (b"1 " * 30_000 + b"x", 400),
    "too_large": (b"1 " * 40_000, 413),
}


@pytest.mark.parametrize("name", BODIES)
def test_hostile_bodies_are_rejected(gateway: Gateway, name: str) -> None:
    """The client gets the status of its fault, and the next request is served."""
    body, status = BODIES[name]
    response = send(gateway, post(body, path="/toy/same"))
    assert status == response.status
    check_text(response.body.decode())
    good = send(gateway, post(b"1 2 -3", path="/toy/same"))
    assert (200, b"2 4 -6") == (good.status, good.body)


HEADS: dict[str, tuple[bytes, int]] = {
    "get": (head("GET", "/toy/same"), 404),
    "no_slash": (post(b"1", path="/toy"), 404),
    "dots": (post(b"1", path="/toy/%2e%2e"), 404),
    "nul_in_name": (post(b"1", path="/toy/a%00"), 404),
    "secret": (post(b"1", path="/toy/secret"), 403),
    "unwelcome": (post(b"1", "x-toy-client: eve", path="/toy/same"), 401),
    "unwelcome_and_wrong": (post(b"x", "x-toy-client: eve", path="/toy/same"), 401),
}


@pytest.mark.parametrize("name", HEADS)
def test_hostile_heads_are_rejected(gateway: Gateway, name: str) -> None:
    """A path is never another model's, and the hooks of the package refuse before the model runs."""
    data, status = HEADS[name]
    response = send(gateway, data)
    assert status == response.status, response.body
    good = send(gateway, post(b"1", path="/toy/same"))
    assert (200, b"2") == (good.status, good.body)
