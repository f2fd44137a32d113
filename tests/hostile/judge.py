"""How hostile inputs are judged: allowed responses, and that good requests still work."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from gateway.schema import open_inference_pb2 as pb
from tests.hostile.process import Gateway, eventually
from tests.hostile.wire import GOOD, LAST_GOOD, Answer, Piece, Raw, ask, is_good

CANARY = "canary-5ecret-9f27"
"""In headers of good and bad requests: no log may hold it."""

REFUSED = frozenset({400, 404, 405, 408, 411, 413, 414, 415, 417, 422, 431, 501, 505})
"""Statuses that tell a client that the fault is its own."""

INFER = "/inference.GRPCInferenceService/ModelInfer"
CLIENTS_FAULT = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)
_SECONDS = 30.0


class Patient:
    """The gateway under attack, and a gRPC channel to it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.channel = grpc.insecure_channel(
            gateway.address("main.grpc"), options=[("grpc.max_send_message_length", -1)]
        )
        self._infer = self.channel.unary_unary(INFER)

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()

    def check(self, start: int) -> None:
        """Assert that it lives and serves, and logged no bug since line *start*."""
        assert self.gateway.alive, self.gateway.text(start)
        log = bugs_of(self.gateway, start)
        assert "Traceback" not in log, log[-4000:]
        assert '"level":"error"' not in log, log[-4000:]
        assert is_good(ask(self.gateway.http, LAST_GOOD))
        assert self.infers()

    def infers(self) -> bool:
        """Send a good request over gRPC."""
        response = pb.ModelInferResponse.FromString(self._infer(good_call(), timeout=_SECONDS))
        return response.model_name == "simple" and len(response.raw_output_contents[0]) == 64

    def call(
        self,
        message: bytes,
        *,
        method: str = INFER,
        metadata: tuple[tuple[str, str | bytes], ...] = (),
        timeout: float = _SECONDS,
        compression: grpc.Compression | None = None,
    ) -> tuple[grpc.StatusCode, str]:
        """Send one message as it is and return status and details."""
        ask_it = self.channel.unary_unary(method)
        try:
            ask_it(message, metadata=metadata, timeout=timeout, compression=compression)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""


def bugs_of(gateway: Gateway, start: int = 0) -> str:
    """Return the log from line *start* on, without the expected lines of the model "fail"."""
    lines = [line for _, line in gateway.log[start:] if "fails on purpose" not in line]
    return "".join(lines)


def check_rejections(gateway: Gateway) -> None:
    """Assert that each request that was rejected has a line, with an id and the limit or the rule.

    Refused connections have no request: a line counts them.
    """
    with closing(HTTPConnection(gateway.address("admin"), timeout=_SECONDS)) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    counted = 0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "gateway_refused_requests_total":
                counted += int(sample.value)
            elif sample.labels.get("limit", "").startswith("connections"):
                counted -= int(sample.value)
    # The line is written before the count is read, but by another process.
    assert eventually(lambda: counted == len(_rejections(gateway))), (
        counted,
        len(_rejections(gateway)),
    )
    for line in _rejections(gateway):
        assert line["request_id"], line
        assert line["code"], line
        assert line.get("limit") or line["rule"], line


def _rejections(gateway: Gateway) -> list[dict[str, Any]]:
    return [event for _, event in gateway.events() if event["event"] == "rejected"]


def good_call() -> bytes:
    """Return a request for the model "simple"."""
    rows = [
        pb.ModelInferRequest.InferInputTensor(name=f"INPUT{n}", datatype="INT32", shape=[1, 16])
        for n in range(2)
    ]
    request = pb.ModelInferRequest(
        model_name="simple", inputs=rows, raw_input_contents=[bytes(64), bytes(64)]
    )
    return bytes(request.SerializeToString())


def warmed(patient: Patient) -> None:
    """Let the gateway load and allocate what good requests need."""
    for _ in range(20):
        assert is_good(ask(patient.gateway.http, LAST_GOOD))
        assert patient.infers()


@dataclass(frozen=True)
class Outcome:
    """The result of hostile bytes on a connection.

    Attributes:
        answers: Responses in order; no more once the gateway closed or the connection was good again.
        closed: The gateway closed the connection.
    """

    answers: tuple[Answer, ...]
    closed: bool


def attack(patient: Patient, *pieces: Piece, head: bool = False, end: bool = False) -> Outcome:
    """Send *pieces* on a fresh connection and judge all received bytes.

    Every response is whole, and good or a client's error, with a JSON error without internals.
    The connection closes when a response announces it and only then. If it does not close, it
    still serves a good request.

    Args:
        patient: The gateway under attack.
        pieces: Bytes, or pauses in seconds.
        head: The request is HEAD: its response has no body.
        end: The client's side is closed after the last piece.
    """
    responses: list[Answer] = []
    with Raw(patient.gateway.http) as raw:
        if raw.send(pieces) and end:
            raw.shut()
        response = raw.answer(head=head)
        if response is not None and not response.closes and not end:
            # Whatever comes before the answer to this one was asked for before.
            assert raw.send([GOOD]), "closed without a word"
        while response is not None:
            if is_good(response) and not end:
                return Outcome(tuple(responses), closed=False)
            responses.append(judged(response, head=head))
            if response.closes:
                assert raw.rest() == b"", "something came after the last answer"
                return Outcome(tuple(responses), closed=True)
            response, head = raw.answer(), False
        return Outcome(tuple(responses), closed=True)


def judged(response: Answer, *, head: bool = False) -> Answer:
    """Assert that *response* is acceptable for a client, and return it."""
    text = response.body.decode("utf-8")
    assert response.status < 500 or response.status in (501, 503, 504, 505), (response.status, text)
    assert CANARY not in text
    if response.status >= 400 and not head:
        document = response.json
        assert list(document) == ["error"], text
        error = document["error"]
        # OpenAI's form has an object, all others a text.
        check_text(error["message"] if isinstance(error, dict) else error)
    return response


def check_text(text: str) -> None:
    """Assert that an error's text is helpful and short and has no internals."""
    assert text
    assert len(text.encode()) <= 1024
    for internal in ("Traceback", "gateway/", ".py", 'File "', "0x7f", "<class", "object at 0x"):
        assert internal not in text, text


def refused(outcome: Outcome, allowed: frozenset[int] = REFUSED) -> bool:
    """Return whether the only response is a rejection of *allowed*, or there is none at all."""
    if not outcome.answers:
        return outcome.closed
    (response,) = outcome.answers
    return response.status in allowed
