"""The key `events` in the configuration file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, field_validator

from gateway.config.models import Config
from gateway.config.tls import TlsConfig
from gateway.config.yaml_tree import Finding, KeyPath
from gateway.settings.fields import (
    Duration,
    FieldName,
    HeaderValue,
    Name,
    NameOf,
    Names,
    Scalar,
    Size,
    Text,
)
from gateway.settings.model import Model
from gateway.settings.setting import Setting
from gateway.shadow.objects import SCHEMES, check_object_url
from gateway.shadow.records.privacy import is_credential

_MIB: Final = 1 << 20
_HTTP: Final = ("http", "https")
_ATTRIBUTE: Final = r"^[a-z0-9]{1,20}$"
_OWN_ATTRIBUTES: Final = frozenset(
    {"data", "datacontenttype", "id", "metadata", "recordedtime", "specversion", "time", "type"}
)
_VALUE: Final = re.compile(r"[^\x00-\x1f\x7f]*")
"""What the value of an attribute may consist of."""

PayloadChoice = Literal["none", "hash", "full"]
EventKind = Literal["request", "response"]
AttributeName = Annotated[str, StringConstraints(pattern=_ATTRIBUTE)]


class EventBatchConfig(Model):
    """How many events make one object, or one batch of Kafka."""

    events: int = Field(1000, ge=1, le=100_000)
    """Most events of an object. Default: `1000`."""
    time: Duration | None = Field(None, gt=0)
    """When an object with fewer events is written. For Kafka it is the time that events wait for
    others. Default: `60s`, for Kafka `100ms`."""


class EventSinkConfig(Model):
    """Where inferences are sent as CloudEvents, which of them, and what of each."""

    url: Text
    """`http://` or `https://`, `kafka://HOST:PORT/TOPIC`, or a folder of objects:
    `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `file:///FOLDER`.
    Packages may add others."""
    payload: PayloadChoice
    """What is sent of the elements of tensors: nothing, a keyed hash, or all. `full` also sends
    parameters."""
    models: Annotated[Names, NameOf("model")] = ("*",)
    """Patterns of models. Default: `["*"]`."""
    percent: float = Field(100.0, gt=0, le=100)
    """Share of the calls. A sequence is sent whole or not at all. Default: `100.0`."""
    per_second: float = Field(1000.0, gt=0, le=1_000_000)
    """Most calls in a second, in each worker. Further ones are dropped, with the reason `rate`.
    Default: `1000.0`."""
    send: tuple[EventKind, ...] = ("request", "response")
    """Which events. A call that fails has no response. Default: `["request", "response"]`."""
    tensors: Mapping[Name, PayloadChoice] = Field(default_factory=dict)
    """`payload` of single tensors, by name. Default: `{}`."""
    headers: tuple[FieldName, ...] = ()
    """Headers of requests in `ce-metadata`; never those of credentials. Default: `[]`."""
    attributes: Mapping[AttributeName, Scalar] = Field(default_factory=dict)
    """Further attributes, or other values of `source`, `inferenceservicename`, `namespace`,
    `component` and `endpoint`. Default: `{}`."""
    request_headers: Mapping[FieldName, HeaderValue] = Field(default_factory=dict, repr=False)
    """Headers of requests to the sink, such as credentials. Default: `{}`."""
    tls: TlsConfig | None = None
    """TLS to `https` and Kafka sinks. Default: none, which verifies `https` by the authorities
    of the system."""
    timeout: Duration = Field(10.0, gt=0)
    """Longest time of one attempt. Default: `10s`."""
    attempts: int = Field(5, ge=1, le=100)
    """Most attempts to send an event, with pauses of 1 s to 60 s. Default: `5`."""
    concurrency: int = Field(8, ge=1, le=1024)
    """Most attempts at the same time. Default: `8`."""
    outbox_bytes: Size = Field(64 * _MIB, ge=1)
    """Bytes of calls that may wait for the sink, in all workers. Further ones are dropped. Default:
    `64MiB`."""
    batch: EventBatchConfig = EventBatchConfig()
    """Size and age of objects."""
    format: Literal["parquet", "jsonl"] = "parquet"
    """Format of objects. `parquet` needs the extra `parquet`. Default: `parquet`."""

    @property
    def scheme(self) -> str:
        """The scheme of the URL."""
        return self.url.partition("://")[0]

    @property
    def is_http(self) -> bool:
        """Whether each event is one request."""
        return self.scheme in _HTTP

    @property
    def is_objects(self) -> bool:
        """Whether events are gathered to objects."""
        return self.scheme in SCHEMES

    @property
    def is_kafka(self) -> bool:
        """Whether events become messages of Kafka."""
        return self.scheme == "kafka"

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if is_credential(name):
                raise ValueError(f"{name!r} may contain a credential; remove it")
        return tuple(name.lower() for name in names)

    @field_validator("send")
    @classmethod
    def _check_send(cls, kinds: tuple[EventKind, ...]) -> tuple[EventKind, ...]:
        if not kinds or len(set(kinds)) != len(kinds):
            raise ValueError("expected 'request', 'response' or both")
        return kinds

    @field_validator("attributes")
    @classmethod
    def _check_attributes(cls, values: Mapping[str, str]) -> Mapping[str, str]:
        for name, value in values.items():
            if name in _OWN_ATTRIBUTES:
                raise ValueError(f"{name!r} differs between events; expected another attribute")
            if _VALUE.fullmatch(value) is None:
                raise ValueError(f"the value of {name!r} has control characters")
        return values

    @field_validator("request_headers")
    @classmethod
    def _check_request_headers(cls, values: Mapping[str, str]) -> Mapping[str, str]:
        for name in values:
            if name.lower().startswith("ce-") or name.lower() in _FRAMING:
                raise ValueError(f"{name!r} is a header of the event itself; remove it")
        return values


_FRAMING: Final = frozenset(
    {"connection", "content-length", "content-type", "host", "transfer-encoding"}
)

EVENTS: Final = Setting[Mapping[str, EventSinkConfig]](
    key="events",
    type=Mapping[Name, EventSinkConfig],
    default={},
    help="Sinks of payload events, by name. Default: none.",
    places=("top",),
)


def check_events(config: Config, package_schemes: frozenset[str]) -> Iterator[Finding]:
    """Yield what is wrong with the sinks of events, beyond the types of keys.

    Args:
        config: The configuration.
        package_schemes: The schemes of sinks of installed packages.
    """
    for name, sink in EVENTS.of(config).items():
        at: KeyPath = ("events", name)
        message = _url_problem(sink, package_schemes)
        if message:
            yield (*at, "url"), message
        if sink.tls is not None and (sink.tls.cert is None) != (sink.tls.key is None):
            yield (*at, "tls"), "'cert' or 'key' is missing; expected both or neither"
        if sink.tls is not None and not sink.tls.verify and config.security.strict:
            forbidden = "the sink is not verified, which security.strict forbids"
            yield (*at, "tls", "verify"), f"{forbidden}; expected 'verify: true' with 'ca'"
        package = "" if message else _missing_package(sink)
        if package:
            yield at, f"needs the extra {package!r}: pip install 'tensor-gateway[{package}]'"
        unused = _unused_keys(sink) & sink.model_fields_set
        if unused and not message:
            yield (*at, min(unused)), f"is not for {sink.scheme}:// sinks; remove it"


def _url_problem(sink: EventSinkConfig, package_schemes: frozenset[str]) -> str:
    try:
        parts = urlsplit(sink.url)
        _ = parts.port
        if sink.is_objects:
            check_object_url(sink.url)
        elif sink.is_http:
            if not parts.hostname or parts.username is not None or parts.fragment:
                return f"{sink.scheme}:// needs a host; expected {sink.scheme}://HOST:PORT/PATH"
        elif sink.is_kafka:
            brokers_and_topic(sink.url)
        elif sink.scheme not in package_schemes:
            known = (*_HTTP, "kafka", *SCHEMES, *sorted(package_schemes))
            return f"unknown scheme {sink.scheme!r}; expected one of {', '.join(known)}"
    except ValueError as error:
        return str(error)
    return ""


def _missing_package(sink: EventSinkConfig) -> str:
    """Return the extra that a sink needs and that is not installed; "" for none."""
    if sink.is_kafka and find_spec("aiokafka") is None:
        return "kafka"
    if not sink.is_objects:
        return ""
    if sink.scheme != "file" and find_spec("fsspec") is None:
        return "objects"
    return "parquet" if sink.format == "parquet" and find_spec("pyarrow") is None else ""


def _unused_keys(sink: EventSinkConfig) -> set[str]:
    unused = set()
    if not sink.is_http:
        unused.add("request_headers")
    if not (sink.is_http or sink.is_kafka):
        unused.add("tls")
    if not sink.is_objects:
        unused.add("format")
    if sink.is_http:
        unused.add("batch")
    return unused


def brokers_and_topic(url: str) -> tuple[list[str], str]:
    """Return the brokers and the topic of `kafka://HOST:PORT,HOST:PORT/TOPIC`.

    Raises:
        ValueError: A host, a port or the topic is missing.
    """
    hosts, _, topic = url.removeprefix("kafka://").partition("/")
    brokers = hosts.split(",")
    for broker in brokers:
        host, _, port = broker.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{broker!r} is no broker; expected kafka://HOST:PORT/TOPIC")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
        raise ValueError(f"{topic!r} is no topic; expected kafka://HOST:PORT/TOPIC")
    return brokers, topic
