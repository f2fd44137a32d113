"""The shadow calls of a migration: their order, limits, deadlines and results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.api.protocol import Codec
from gateway.config.load import load_text
from gateway.ir.calls import Call, InferRequest, InferResponse, OpaqueCall, StreamInferRequest
from gateway.ir.context import CallSequence, Context, ModelRef, Need, Origin
from gateway.ir.errors import InvalidRequest, Unavailable
from gateway.ir.identity import ANONYMOUS
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, items_tensor
from gateway.migration.mirror.mirror import Mirror
from gateway.migration.replay.forwarded import codec_of
from gateway.migration.replay.wire_messages import row_of
from gateway.migration.targets import live_migrations
from gateway.settings.units import parse_url
from gateway.shadow.draw import sequence_key
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import FORWARDED, Recordable, RecordedCall, record_of
from gateway.shadow.records.transfer import (
    Confirmation,
    SampleMessage,
    ShadowRequest,
    decode_message,
    encode_message,
)
from gateway.telemetry.log.error_texts import error_text
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.fakes import settle
from tests.integration.http_kit import eventually

FILE = """version: 1
listeners: [{{http: 0}}]
upstreams: {{a: {{url: "http://h:1"}}, b: {{url: "http://h:2"}}}}
routes: [{{name: r, targets: [{{upstream: a}}, {{upstream: b, weight: 0}}]}}]
migrations: {{m: {{route: r, old: a, new: b, mirror: {{{mirror}}}, noise: {{percent: 100}}}}}}
"""
SENDER = (1, 77)
ROWS = TensorMetadata("x", Datatype.FP32, (-1, 4))


def reply(value: float | None = 1.0) -> InferResponse:
    if value is None:  # elements that do not match the shape
        tensor = Tensor("y", Datatype.FP32, (1,), RawData(memoryview(b"abc")))
        return InferResponse(model=ModelRef("m"), outputs=(tensor,))
    return InferResponse(
        model=ModelRef("m"), outputs=(array_tensor("y", np.array([value], np.float32)),)
    )


class Target:
    """A target that replies when its gate is open.

    Attributes:
        calls: All calls, in their order.
    """

    def __init__(self, value: float = 1.0) -> None:
        self.calls: list[Call[Any]] = []
        self.value: float | None = value
        self.gate: asyncio.Event | None = None
        self.versions: tuple[str, ...] | None = None
        self.error: Exception | None = None
        self.max_batch_size = 0

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, OpaqueCall):
            self.calls.append(call)
            response = HttpResponse(200, body=(b'{"a": %f}' % (self.value or 0.0),))
            return Origin("tfs.http", response, whole=call.message.whole)
        if not isinstance(call, InferRequest | StreamInferRequest):
            if self.versions is None:
                raise Unavailable("no metadata")
            found = ModelMetadata(name="m", versions=self.versions, inputs=(ROWS,))
            has_size = Need.BATCHING in call.context.needs
            return found.changed(max_batch_size=self.max_batch_size) if has_size else found
        self.calls.append(call)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self._items() if isinstance(call, StreamInferRequest) else reply(self.value)

    async def _items(self) -> AsyncIterator[InferResponse]:
        for text in (b"he", b"l", b"lo"):
            yield InferResponse(model=ModelRef("m"), outputs=(items_tensor("text", (1,), [text]),))


class Setting:
    """A mirror of two targets, with its confirmations."""

    def __init__(
        self,
        mirror: str = "in_flight: 32",
        payload: Literal["none", "full"] = "none",
        codecs: Mapping[str, Codec[Any, Any]] | None = None,
    ) -> None:
        (migration,) = live_migrations(load_text(FILE.format(mirror=mirror)).config)
        self.old, self.new = Target(), Target()
        self.confirmed: list[Confirmation] = []
        services = {"old": self.old, "new": self.new}
        privacy = Privacy(payload=payload)
        self.mirror = Mirror(
            migration,
            services,
            privacy,
            lambda _, found: self.confirmed.append(found),
            codecs=codecs or {},
        )
        self._numbers = 0

    def put(self, record: RecordedCall | None, shadow: ShadowRequest | None = None) -> None:
        self._numbers += 1
        message = SampleMessage(record, shadow=shadow)
        self.mirror.put(SENDER, self._numbers, message, 100)

    @property
    def skipped(self) -> dict[str, int]:
        found: dict[str, int] = self.mirror.document()["skipped"]
        return found

    @property
    def outcomes(self) -> dict[str, int]:
        document = self.mirror.document()
        return {name: count for name, count in document["outcomes"].items() if count}

    async def done(self) -> None:
        """Wait until every call has a confirmed result."""
        await eventually(lambda: bool(self.confirmed) and self.confirmed[-1].done >= self._numbers)


def record(
    target: str = "a",
    *,
    sequence: CallSequence | None = None,
    value: float = 1.0,
    **fields: Any,
) -> RecordedCall:
    context = Context(protocol="oip.http", request_id="r")
    request = InferRequest(
        model=ModelRef("m"),
        context=context,
        inputs=(array_tensor("x", np.ones(1, np.float32)),),
        sequence=sequence,
    )
    values: dict[str, Any] = {
        "started_us": 1_700_000_000_000_000,
        "request": request,
        "kind": "InferRequest",
        "context": context,
        "target": target,
        "took_us": 1000,
        "items": [(900, reply(value))],
    }
    privacy = Privacy(payload="full", parameters=True)
    return record_of(Recordable(**values | fields), privacy, None)


def stream_record(texts: list[bytes], **fields: Any) -> RecordedCall:
    items = [
        (
            100 * number,
            InferResponse(model=ModelRef("m"), outputs=(items_tensor("text", (1,), [text]),)),
        )
        for number, text in enumerate(texts)
    ]
    return record(kind="StreamInferRequest", items=items, **fields)


async def test_the_other_target_receives_the_shadow_call() -> None:
    """The call has the client's headers; "old" is the old target in each outcome."""
    setting = Setting()
    setting.put(record("a"), ShadowRequest(metadata=(("x-tenant", "t"),)))
    setting.put(record("b", value=2.0))
    setting.put(record("c"))
    await setting.done()
    assert [len(target.calls) for target in (setting.old, setting.new)] == [1, 1]
    assert setting.new.calls[0].context.metadata == (("x-tenant", "t"),)
    assert setting.outcomes == {"match": 1, "mismatch": 1}
    assert setting.skipped == {"other_target": 1}


EXPLAINED = parse_url("tfs+http://h:1")


def forwarded_record(path: str = "/v1/models/m:explain", reply: bytes = b'{"a": 1.0}') -> Any:
    """Return a forwarded call as the tap sends it."""
    headers = Headers([("content-type", "application/json"), ("x-own", "y")])
    request = HttpRequest("POST", path, "a=b", headers, (b'{"instances": [[1]]}',))
    rows = [
        row_of("request", 0, request, None),
        row_of("reply", 0, HttpResponse(200, body=(reply,)), None),
    ]
    context = Context(protocol="tfs.http", request_id="r")
    inferred = InferRequest(model=ModelRef("m"), context=context)
    found = record(kind=FORWARDED, context=context, request=inferred, items=[], wire=rows)
    buffers = encode_message(SampleMessage(found))
    return decode_message(memoryview(b"".join(buffers))).record


async def test_a_forwarded_call_is_sent_as_it_came() -> None:
    """The other target gets the message with the client's headers; replies are kept as outputs."""
    codec = codec_of(EXPLAINED, {"dialect": "kserve"})
    setting = Setting(payload="full", codecs={"old": codec, "new": codec})
    setting.put(forwarded_record(), ShadowRequest(metadata=(("x-tenant", "t"),)))
    await setting.done()
    setting.put(forwarded_record(reply=b'{"a": 3.0}'))
    await setting.done()
    assert setting.outcomes == {"match": 1, "mismatch": 1}
    call = setting.new.calls[0]
    assert isinstance(call, OpaqueCall)
    wire = call.message.wire
    assert (wire.path, wire.query) == ("/v1/models/m:explain", "a=b")
    assert bytes(wire.view) == b'{"instances": [[1]]}'
    assert wire.headers.get("x-own") == "y"
    assert call.context.metadata == (("x-tenant", "t"),)
    worst = setting.mirror.samples.list()[0]["id"]
    document = setting.mirror.samples.document(worst)
    assert document is not None
    shown = {side: [each["values"] for each in document[side][0]] for side in ("old", "new")}
    assert shown == {"old": [['{"a": 0}'], [3.0]], "new": [['{"a": 0}'], [1.0]]}


async def test_a_forwarded_call_to_a_server_of_another_form_is_skipped() -> None:
    """Targets without a codec of the form get nothing, nor does one whose codec reads it not."""
    setting = Setting()
    setting.put(forwarded_record())
    await setting.done()
    assert setting.skipped == {"forwarded": 1}
    codec = codec_of(EXPLAINED)
    setting = Setting(codecs={"old": codec, "new": codec})
    setting.put(forwarded_record())
    await setting.done()
    assert setting.skipped == {"invalid": 1}
    assert not setting.new.calls


async def test_results_are_confirmed_in_the_order_of_the_calls() -> None:
    """A pending call delays later results, and each result is confirmed once."""
    setting = Setting()
    setting.new.gate = asyncio.Event()
    setting.put(record("a"))
    setting.put(record("b"))
    await settle()
    assert setting.outcomes == {"match": 1}
    assert setting.confirmed == []
    setting.new.gate.set()
    await setting.done()
    assert sum(each.recorded for each in setting.confirmed) == 2
    assert [each.epoch for each in setting.confirmed] == [77] * len(setting.confirmed)


async def test_shadow_calls_wait_above_in_flight() -> None:
    """At most `in_flight` shadow calls run at a time, and a full queue has no room."""
    setting = Setting("in_flight: 2")
    setting.new.gate = asyncio.Event()
    for _ in range(5):
        setting.put(record())
    await settle()
    assert len(setting.new.calls) == 2
    found = [setting.mirror.has_room]
    for _ in range(1024):
        setting.put(record())
    found.append(setting.mirror.has_room)
    assert found == [True, False]
    setting.new.gate.set()
    await setting.done()
    assert len(setting.new.calls) == 1029
    assert setting.outcomes == {"match": 1029}


async def test_shadow_calls_have_their_own_timeout() -> None:
    """A target that does not reply in time has the outcome `timeout`."""
    setting = Setting("timeout: 50ms")
    setting.new.gate = asyncio.Event()
    setting.put(record())
    await setting.done()
    assert setting.outcomes == {"timeout": 1}


async def test_errors_are_outcomes() -> None:
    """One target fails, both fail with the same code, or with different codes."""
    setting = Setting()
    setting.put(record(code="invalid_argument", items=[]))
    await setting.done()
    setting.new.error = Unavailable("down")
    setting.put(record())
    setting.put(record(code="unavailable", items=[]))
    setting.put(record(code="invalid_argument", items=[]))
    await setting.done()
    assert setting.outcomes == {"old_error": 1, "new_error": 1, "match": 1, "both_error": 1}


@pytest.mark.parametrize("code", ["unavailable", "invalid_argument"])
async def test_whose_text_an_error_of_a_client_has_is_known_by_the_error(code: str) -> None:
    """The serving process has the error, and marks what a server wrote; a code does not tell."""
    shown = []
    for error in ("no endpoint is ready", "server said: out of memory"):
        setting = Setting()
        setting.put(record(code=code, items=[], error=error), ShadowRequest(error=error))
        await setting.done()
        (reason,) = setting.mirror.document()["reasons"]
        shown.append(reason["example"])
    assert ["no endpoint is ready", "server said: out of memory"] == shown


@pytest.mark.parametrize("payload", ["none", "full"])
async def test_failed_calls_have_reasons(payload: Literal["none", "full"]) -> None:
    """Evidence, lists and log have the server's text cut; a sample with payload keeps it whole."""
    setting = Setting(payload=payload)
    text = "input 'X' has dims [64], the model expects [-1, 64]; got " + "1.0, " * 100
    setting.new.error = InvalidRequest(text, origin=Origin("oip.http", None))
    with capture_logs() as logs:
        setting.put(record())
        await setting.done()
    shown = error_text(setting.new.error)
    assert "input 'X' has dims [64], the model expects [-1, 64]" in shown
    document = setting.mirror.document()
    (reason,) = document["reasons"]
    assert ("new_error", "invalid_argument", 1, shown[:500]) == (
        reason["outcome"],
        reason["code"],
        reason["count"],
        reason["example"],
    )
    assert [shown] == [each["reason"] for each in document["samples"]]
    sample = setting.mirror.samples.document(document["samples"][0]["id"])
    assert sample is not None
    assert {"old": "", "new": text if payload == "full" else shown} == sample["errors"]
    assert [shown] == [each["reason"] for each in logs if each["event"] == "sample mismatch"]


async def test_a_reply_that_cannot_be_read_is_a_difference() -> None:
    """It would be no evidence against the new server if it were skipped."""
    setting = Setting()
    setting.new.value = None
    setting.put(record())
    await setting.done()
    document = setting.mirror.document()
    assert ({"structure": 1}, {}, 0) == (setting.outcomes, setting.skipped, document["in_flight"])
    assert document["reasons"][0]["example"].startswith("a reply cannot be read: ")


async def test_calls_of_a_sequence_run_in_order() -> None:
    """A call waits for the one before it, and the end releases the id."""
    setting = Setting("sequences: whole")
    setting.new.gate = asyncio.Event()
    setting.put(record(sequence=CallSequence(5, start=True)))
    setting.put(record(sequence=CallSequence(5)))
    setting.put(record(sequence=CallSequence(5, end=True)))
    await eventually(lambda: setting.new.calls)
    await settle()
    assert len(setting.new.calls) == 1
    setting.new.gate.set()
    await setting.done()
    sequences = [call.sequence for call in setting.new.calls if isinstance(call, InferRequest)]
    expected = [CallSequence(5, start=True), CallSequence(5), CallSequence(5, end=True)]
    assert sequences == expected
    setting.put(record(sequence=CallSequence(5)))
    await setting.done()
    assert setting.skipped == {"sequence": 1}


def step(number: int) -> RecordedCall:
    """Return a call of a sequence of four."""
    sequence = CallSequence(5, start=number == 1, end=number == 4)
    return record(sequence=sequence, started_us=1_700_000_000_000_000 + number)


@pytest.mark.parametrize(
    ("waves", "compared"),
    [([[2, 4, 1, 3]], 4), ([[1], [3], [2], [4]], 2), ([[2], [1], [3, 4]], 0)],
    ids=["in one moment", "one late", "a late start"],
)
async def test_calls_of_a_sequence_may_arrive_in_any_order(
    waves: list[list[int]], compared: int
) -> None:
    """They are put in their order; behind a call that came too late, none is compared."""
    setting = Setting("sequences: whole")
    for wave in waves:
        for number in wave:
            setting.put(step(number))
        await setting.done()
    sent = [call.sequence for call in setting.new.calls if isinstance(call, InferRequest)]
    expected = [number for wave in waves for number in sorted(wave)][:compared]
    assert sent == [step(number).request().sequence for number in expected]
    assert setting.skipped == ({"sequence": 4 - compared} if compared < 4 else {})


async def test_a_call_that_a_process_lost_ends_the_comparison_of_its_sequence() -> None:
    """Calls of other processes are skipped, until the sequence starts after that."""
    setting = Setting("sequences: whole")
    setting.put(step(1))
    await setting.done()
    key = sequence_key(step(1).request(), ANONYMOUS.name)
    setting.put(None, ShadowRequest(broken=(key,)))
    setting.put(step(3))
    await setting.done()
    assert (setting.outcomes, setting.skipped) == ({"match": 1}, {"sequence": 1})
    later_us = 4_000_000_000_000_000
    setting.put(record(sequence=CallSequence(5, start=True), started_us=later_us))
    await setting.done()
    assert setting.outcomes == {"match": 2}


async def test_a_failed_call_ends_the_comparison_of_its_sequence() -> None:
    """Later calls are skipped until the sequence starts again, as are calls without a start."""
    setting = Setting("sequences: whole")
    setting.new.error = Unavailable("down")
    for sequence in (CallSequence(5, start=True), CallSequence(5), CallSequence(6)):
        setting.put(record(sequence=sequence))
    await setting.done()
    setting.new.error = None
    setting.put(record(sequence=CallSequence(5)))
    setting.put(record("b", sequence=CallSequence(5, start=True)))
    setting.put(record("a", sequence=CallSequence(5)))
    await setting.done()
    assert setting.outcomes == {"new_error": 1, "match": 1}
    assert setting.skipped == {"sequence": 4}


async def test_a_reused_sequence_id_loses_no_waiting_call() -> None:
    """All calls run in order, although the id starts again before its end has run."""
    setting = Setting("sequences: whole")
    setting.new.gate = asyncio.Event()
    parts = [
        CallSequence(5, start=True),
        CallSequence(5),
        CallSequence(5, start=True),
        CallSequence(5, end=True),
    ]
    for sequence in parts:
        setting.put(record(sequence=sequence))
    await eventually(lambda: setting.new.calls)
    setting.new.gate.set()
    await setting.done()
    calls = [call.sequence for call in setting.new.calls if isinstance(call, InferRequest)]
    assert calls == parts
    assert setting.outcomes == {"match": 4}
    assert setting.mirror.document()["in_flight"] == 0


async def test_a_sequence_start_behind_a_failed_call_runs() -> None:
    """Only the rest of the failed sequence is skipped, not the next one with its id."""
    setting = Setting("sequences: whole")
    setting.new.gate = asyncio.Event()
    setting.new.error = Unavailable("down")
    for sequence in (CallSequence(5, start=True), CallSequence(5), CallSequence(5, start=True)):
        setting.put(record(sequence=sequence))
    await eventually(lambda: setting.new.calls)
    setting.new.gate.set()
    await setting.done()
    assert setting.outcomes == {"new_error": 2}
    assert setting.skipped == {"sequence": 1}


async def test_streams_are_joined_or_compared_item_by_item() -> None:
    """Texts with different item boundaries match when joined, and differ as items."""
    for mirror, outcome in (("streams: join", "match"), ("streams: items", "structure")):
        setting = Setting(mirror)
        setting.put(stream_record([b"hell", b"o"]))
        await setting.done()
        assert setting.outcomes == {outcome: 1}


async def test_a_cancelled_stream_limits_the_compared_items() -> None:
    """The items that the client received are compared; without items the call is skipped."""
    setting = Setting("streams: items")
    setting.put(stream_record([b"he", b"l"], code="cancelled"))
    setting.put(stream_record([], code="cancelled"))
    await setting.done()
    assert setting.outcomes == {"match": 1}
    assert setting.skipped == {"cancelled": 1}


async def test_noise_calls_the_old_target_again() -> None:
    """The two replies of the old target are compared with each other."""
    setting = Setting()
    setting.old.value = 3.0
    setting.put(record(value=1.0), ShadowRequest(noise=True))
    await setting.done()
    await eventually(lambda: setting.mirror.document()["noise"]["compared"] > 0)
    noise = setting.mirror.document()["noise"]
    assert (noise["compared"], noise["mismatched"]) == (1, 1)
    assert noise["tolerance"] == {"y": 2.0}
    assert [len(target.calls) for target in (setting.old, setting.new)] == [1, 1]


async def test_a_flush_message_is_confirmed_after_earlier_calls() -> None:
    """A stopping serving process thus learns that every call has its result."""
    setting = Setting()
    setting.new.gate = asyncio.Event()
    setting.put(record())
    setting.put(None)
    await settle()
    assert setting.confirmed == []
    setting.new.gate.set()
    await setting.done()
    assert sum(each.recorded for each in setting.confirmed) == 1


async def test_the_evidence_has_the_model_versions_of_both_targets() -> None:
    """The versions come from the metadata of the targets; a reset requests them again."""
    setting = Setting()
    watching = asyncio.create_task(setting.mirror.watch_metadata())

    def versions() -> dict[str, list[str]]:
        models: dict[str, Any] = setting.mirror.document()["models"]
        return {side: found["versions"] for side, found in models.get("m", {}).items()}

    assert {} == versions()
    setting.new.versions = ("2",)
    setting.put(record())
    await eventually(lambda: versions() == {"new": ["2"]})
    setting.old.versions, setting.new.versions = ("1",), ("3", "2")
    setting.mirror.reset()
    assert {} == versions()
    await eventually(lambda: versions() == {"old": ["1"], "new": ["2", "3"]})
    watching.cancel()
    await setting.mirror.close(1)


async def test_a_new_model_without_batches_is_found_at_the_start() -> None:
    """Only its configuration says so: its shapes are those of the old model."""
    setting = Setting()
    setting.old.versions = setting.new.versions = ("1",)
    setting.old.max_batch_size = 8
    with capture_logs() as lines:
        watching = asyncio.create_task(setting.mirror.watch_metadata())
        setting.put(record())
        await eventually(lambda: bool(setting.mirror.document()["metadata"]))
        watching.cancel()
    (line,) = [each for each in lines if each["event"] == "metadata differs"]
    assert setting.mirror.document()["metadata"] == line["differences"]
    text = "the old model takes batches, and the new one takes none (max_batch_size 0)"
    assert line["differences"][0].startswith(f"model 'm': {text}: ")
    await setting.mirror.close(1)


async def test_a_shadow_call_was_of_anonymous() -> None:
    """It is of the client of its call, and equal sequences of two clients are two."""
    setting = Setting()
    for client in ("corp:J\u00fcrgen", "web"):
        sent = decode_message(
            memoryview(
                b"".join(
                    encode_message(SampleMessage(record(), shadow=ShadowRequest(client=client)))
                )
            )
        )
        setting.put(record(), sent.shadow)
    await setting.done()
    names = [call.context.client.identity.name for call in setting.new.calls]
    assert ["corp:J\u00fcrgen", "web"] == sorted(names)
    texts = {sequence_key(sequenced(model, of), client) for model, of, client in DIFFERENT}
    assert len(DIFFERENT) == len(texts)


DIFFERENT: list[tuple[str, int | str, str]] = [
    ("m", 1, "a"),
    ("m", "1", "a"),
    ("m", 1, "b"),
    ("m|1", 2, "a"),
    ("m", "1|2", "a"),
]


def sequenced(model: str, sequence_id: int | str) -> InferRequest:
    return InferRequest(model=ModelRef(model), sequence=CallSequence(sequence_id))
