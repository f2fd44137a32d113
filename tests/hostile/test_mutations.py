"""Good requests, damaged at random: no damage becomes a fault of the gateway."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.hostile.binary_cases import HEADER, document
from tests.hostile.grpc_cases import request, tensor
from tests.hostile.judge import CLIENTS_FAULT, Patient, attack, good_call, judged
from tests.hostile.wire import GOOD, GOOD_BODY, Raw, post

pytestmark = pytest.mark.hostile

_SEEDS = range(8)
_EACH = 40
_TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\0", b"\xff", b"\r\n", b" ", b"-", b"e9"),
    *(b"null", b"true", b"NaN", b"1e999", b"\\ud800", b"9" * 25, b"data", b"\x80" * 9, b"%00"),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 2**31, 2**63, 2**64, 1e308, "", "x", "\0", "BYTES", "FP16", [], {}),
    *([[]], [None], [1, "x"], [[1], 2], {"a": 1}, [0] * 40, "é" * 600),
)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return *data* with one to four damages."""
    result = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(result) + 1)
        kind = chance.randrange(6)
        if kind == 0 and result:
            result[at % len(result)] = chance.randrange(256)
        elif kind == 1:
            result[at:at] = chance.choice(_TOKENS)
        elif kind == 2:
            del result[at : at + chance.randint(1, 8)]
        elif kind == 3:
            result[at:at] = result[at : at + chance.randint(1, 40)]
        elif kind == 4 and result:
            result[at % len(result)] ^= 1 << chance.randrange(8)
        else:
            token = chance.choice(_TOKENS)
            result[at : at + len(token)] = token
    return bytes(result)


def altered(value: Any, chance: random.Random) -> Any:
    """Return a JSON value with some node of it exchanged, removed or doubled."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        kind = chance.random()
        if kind < 0.1:
            return {name: each for name, each in value.items() if name != key}
        if kind < 0.2:
            return {**value, chance.choice(("x", "", "data", "shape", "é")): value[key]}
        return {**value, key: altered(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        if chance.random() < 0.2:
            return value[:at] + value[at:] + [value[at]]
        return [*value[:at], altered(value[at], chance), *value[at + 1 :]]
    return chance.choice(_VALUES)


def _answers(patient: Patient, requests: Iterator[bytes]) -> set[int]:
    """Send requests whose framing is right on one connection and return the statuses."""
    found = set()
    with Raw(patient.gateway.http) as raw:
        for data in requests:
            assert raw.send([data])
            response = raw.answer()
            assert response is not None, data
            assert not response.closes, data
            found.add(judged(response).status)
    return found


@pytest.mark.parametrize("seed", _SEEDS)
def test_damaged_json_is_a_client_error(patient: Patient, seed: int) -> None:
    """Changed bytes of JSON lead to success or an error of the client."""
    chance = random.Random(seed)  # noqa: S311  # the same damage each time
    bodies = (damaged(GOOD_BODY, chance) for _ in range(_EACH))
    assert _answers(patient, (post(body) for body in bodies)) <= {200, 400, 404, 413, 501}


@pytest.mark.parametrize("seed", _SEEDS)
def test_altered_json_is_a_client_error(patient: Patient, seed: int) -> None:
    """Exchanged members of valid JSON lead to success or an error of the client."""
    chance = random.Random(seed)  # noqa: S311  # the same damage each time
    whole = json.loads(GOOD_BODY) | {
        "parameters": {"priority": 1, "sequence_id": 3, "binary_data_output": False, "x": "y"},
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": False}}],
    }
    bodies = [json.dumps(altered(whole, chance)).encode() for _ in range(2 * _EACH)]
    assert _answers(patient, (post(body) for body in bodies)) <= {200, 400, 404, 413, 501}


@pytest.mark.parametrize("seed", _SEEDS)
def test_damaged_binary_is_a_client_error(patient: Patient, seed: int) -> None:
    """Changed bytes of JSON and tensors do, too, for two datatypes."""
    chance = random.Random(seed)  # noqa: S311  # the same damage each time

    def requests() -> Iterator[bytes]:
        for number in range(_EACH):
            datatype, data = (("INT32", bytes(8)), ("BYTES", b"\1\0\0\0a\0\0\0\0"))[number % 2]
            text = document(len(data), datatype)
            body = damaged(text + data, chance)
            path = f"/v2/models/identity_{datatype.lower()}/infer"
            yield post(body, f"{HEADER}: {len(text)}", path=path)

    assert _answers(patient, requests()) <= {200, 400, 404, 413, 501}


@pytest.mark.needs("readable_faults", "broken_bodies")
@pytest.mark.parametrize("seed", _SEEDS)
def test_damaged_http_is_a_client_error(patient: Patient, seed: int) -> None:
    """Changed bytes of a whole head lead to success, an error of the client, or a close."""
    chance = random.Random(seed)  # noqa: S311  # the same damage each time
    for _ in range(_EACH // 2):
        outcome = attack(patient, damaged(GOOD[: GOOD.index(b"\r\n\r\n") + 4], chance), end=True)
        for response in outcome.answers:
            assert (
                response.status == 200
                or 400 <= response.status < 500
                or response.status in (501, 505)
            )


@pytest.mark.parametrize("seed", _SEEDS)
def test_damaged_messages_are_client_errors(patient: Patient, seed: int) -> None:
    """Changed bytes of gRPC messages lead to success or an error of the client."""
    chance = random.Random(seed)  # noqa: S311  # the same damage each time
    messages = [
        good_call(),
        request(tensor("BYTES", (1,)), raw=[b"\1\0\0\0a"], model="identity_bytes"),
    ]
    for number in range(_EACH):
        data = damaged(messages[number % 2], chance)
        code, details = patient.call(data)
        assert code in CLIENTS_FAULT | {grpc.StatusCode.OK}, (code, details, data)
