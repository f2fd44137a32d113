"""Sinks other than HTTP: objects in folders, Kafka with a producer of the test, and packages."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateway.api.events import Event
from gateway.events.definition import SinkDefinition
from gateway.events.messages import EventNote, encode_call
from gateway.events.sinks.opening import LateSink, open_sink
from gateway.events.sinks.queue import HeldCall, QueuedEvent, SendOutcome
from gateway.events.sinks.writer import EventWriter
from gateway.shadow.records.privacy import Hasher
from tests.unit.events.kit import definition, record

REQUEST, RESPONSE = 1, 2
TYPES = ["org.kubeflow.serving.inference.request", "org.kubeflow.serving.inference.response"]


def pair(ce_id: str = "c-1") -> list[QueuedEvent]:
    """Return both events of a call."""
    held = HeldCall((1, 7), EventNote(ce_id=ce_id), b"".join(encode_call(record())), 2)
    return [QueuedEvent(held, kind, 0.0, 0) for kind in (REQUEST, RESPONSE)]


def writer(made: SinkDefinition) -> EventWriter:
    return EventWriter(made, Hasher())


def files(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


async def test_an_object_has_a_row_for_each_event(tmp_path: Path) -> None:
    """A file of lines has KServe's columns, and bodies in base64."""
    made = definition(url=f"file://{tmp_path}", format="jsonl")
    sink = open_sink(made, writer(made))
    assert [(SendOutcome.DELIVERED, "")] * 2 == list(await sink.send(pair()))
    (path,) = files(tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert TYPES == [row["reqType"] for row in rows]
    assert ["c-1", "c-1"] == [row["id"] for row in rows]
    assert {"inputs", "outputs"} <= json.loads(b64decode(rows[0]["bytes"])).keys()
    assert list(rows[0]) == [
        "url", "bytes", "contentType", "reqType", "id", "sourceUri", "inferenceService",
        "namespace", "component", "endpoint", "metadata", "annotations", "certName", "tlsSkipVerify",
    ]  # fmt: skip
    assert "fraud" == json.loads(rows[0]["annotations"])["model"]


async def test_parquet_has_the_same_columns(tmp_path: Path) -> None:
    """A Parquet file has the rows of the file of lines."""
    parquet = pytest.importorskip("pyarrow.parquet")
    made = definition(url=f"file://{tmp_path}")
    sink = open_sink(made, writer(made))
    await sink.send([*pair("c-1"), *pair("c-2")])
    (path,) = files(tmp_path)
    rows = parquet.read_table(path).to_pylist()
    assert [*TYPES, *TYPES] == [row["reqType"] for row in rows]
    assert {"inputs", "outputs"} <= json.loads(b64decode(rows[0]["bytes"])).keys()
    assert rows[0]["tlsSkipVerify"] is False


async def test_a_store_that_refuses_is_a_failed_attempt(tmp_path: Path) -> None:
    """Events of an object that cannot be written may be sent again."""
    (tmp_path / "file").write_text("in the way")
    made = definition(url=f"file://{tmp_path}/file/folder", format="jsonl")
    found = await open_sink(made, writer(made)).send(pair())
    assert [SendOutcome.FAILED] * 2 == [outcome for outcome, _ in found]


class Producer:
    """A producer of aiokafka that does what the test says."""

    made: list[Producer] = []  # noqa: RUF012  # of the test
    can_start = True

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.messages: list[tuple[str, bytes, bytes, dict[str, bytes]]] = []
        self.is_running = False
        Producer.made.append(self)

    async def start(self) -> None:
        if not Producer.can_start:
            raise KafkaError("no broker")
        self.is_running = True

    async def stop(self) -> None:
        self.is_running = False

    async def send_and_wait(
        self, topic: str, value: bytes, key: bytes, headers: list[tuple[str, bytes]]
    ) -> None:
        if topic == "small":
            raise MessageSizeTooLargeError("too large")
        if topic == "down":
            raise KafkaError("no leader")
        self.messages.append((topic, key, value, dict(headers)))


class KafkaError(Exception):
    """As in aiokafka.errors."""


class MessageSizeTooLargeError(KafkaError):
    """As in aiokafka.errors."""


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> type[Producer]:
    """Put a package in place of aiokafka."""
    module, errors = ModuleType("aiokafka"), ModuleType("aiokafka.errors")
    vars(module)["AIOKafkaProducer"] = Producer
    vars(errors).update(KafkaError=KafkaError, MessageSizeTooLargeError=MessageSizeTooLargeError)
    monkeypatch.setitem(sys.modules, "aiokafka", module)
    monkeypatch.setitem(sys.modules, "aiokafka.errors", errors)
    monkeypatch.setattr(Producer, "made", [])
    monkeypatch.setattr(Producer, "can_start", True)
    return Producer


async def test_a_message_of_kafka_is_an_event(kafka: type[Producer]) -> None:
    """Attributes are headers that begin with `ce_`, and both events of a call have one key."""
    made = definition(url="kafka://one:9092,two:9093/audit")
    sink = open_sink(made, writer(made))
    found = await asyncio.gather(sink.send(pair("a")), sink.send(pair("b")))
    assert [[(SendOutcome.DELIVERED, "")] * 2] * 2 == [list(each) for each in found]
    (producer,) = kafka.made
    assert ["one:9092", "two:9093"] == producer.options["bootstrap_servers"]
    assert ("all", 10_000) == (producer.options["acks"], producer.options["request_timeout_ms"])
    assert [b"a", b"a", b"b", b"b"] == sorted(key for _, key, _, _ in producer.messages)
    topic, key, value, headers = producer.messages[0]
    assert ("audit", TYPES[0].encode()) == (topic, headers["ce_type"])
    assert (b"application/json", key) == (headers["content-type"], headers["ce_id"])
    assert "inputs" in json.loads(value)
    await sink.close()
    await sink.close()
    assert not producer.is_running


@pytest.mark.parametrize(
    ("topic", "outcome"), [("small", SendOutcome.REFUSED), ("down", SendOutcome.FAILED)]
)
async def test_errors_of_kafka_decide_about_a_message(
    kafka: type[Producer], topic: str, outcome: SendOutcome
) -> None:
    """A message that is too large stays so; what a broker may mend is tried again."""
    made = definition(url=f"kafka://one:9092/{topic}")
    found = await open_sink(made, writer(made)).send(pair())
    assert [outcome] * 2 == [each for each, _ in found]


async def test_brokers_that_are_gone_are_not_reached(kafka: type[Producer]) -> None:
    """The producer is closed, and another one is made for the next attempt."""
    made = definition(url="kafka://one:9092/audit")
    sink = open_sink(made, writer(made))
    kafka.can_start = False
    ((outcome, reason), _) = await sink.send(pair())
    assert (SendOutcome.UNREACHABLE, "cannot connect to one:9092: no broker") == (outcome, reason)
    kafka.can_start = True
    assert [(SendOutcome.DELIVERED, "")] * 2 == list(await sink.send(pair()))
    assert [False, True] == [each.is_running for each in kafka.made]


class OwnSink:
    """A sink as a package has it."""

    events: list[Event] = []  # noqa: RUF012  # of the test
    is_closed = False

    def __init__(self, url: str) -> None:
        self.url = url

    async def send(self, events: list[Event], /) -> None:
        if self.url.endswith("broken"):
            raise RuntimeError("a defect of the package")
        OwnSink.events += events

    async def close(self) -> None:
        OwnSink.is_closed = True


async def test_a_sink_of_a_package_gets_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made of its URL, and gets attributes and the body as JSON values."""
    monkeypatch.setattr("gateway.registry.event_sink", {"own": OwnSink}.__getitem__)
    made = definition(url="own://somewhere")
    sink = open_sink(made, writer(made))
    assert [(SendOutcome.DELIVERED, "")] * 2 == list(await sink.send(pair()))
    first, second = OwnSink.events
    assert TYPES == [first.name, second.name]
    assert ("fraud", "c-1") == (first.fields["model"], first.fields["id"])
    assert "inputs" in first.fields["data"]
    assert 1_700_000_000 == int(first.time)
    await sink.close()
    assert OwnSink.is_closed
    broken = definition(url="own://broken")
    ((outcome, reason), _) = await open_sink(broken, writer(broken)).send(pair())
    assert (SendOutcome.FAILED, "RuntimeError: a defect of the package") == (outcome, reason)


async def test_a_sink_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    """A certificate that comes later opens the sink with a later event."""
    made = SinkDefinition(
        "audit",
        definition(url="https://127.0.0.1:1/", tls={"ca": "ca.pem"}).config,
        tmp_path,
    )
    sink = LateSink(made, writer(made))
    ((outcome, reason),) = await sink.send(pair()[:1])
    assert SendOutcome.UNREACHABLE is outcome
    assert "ca.pem" in reason
    await sink.close()
