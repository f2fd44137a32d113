"""Random inputs of the functions that have a compiled version: valid, mutated and truncated."""

from __future__ import annotations

import asyncio
import json
import math
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from hpack import Encoder
from hpack.struct import HeaderTuple, NeverIndexedHeaderTuple

from gateway.access import authenticator
from gateway.backends import validation as outputs
from gateway.concurrency.limiter import Limiter
from gateway.concurrency.timeouts import TimerWheel
from gateway.concurrency.waiters import Share
from gateway.frontend import frontend
from gateway.ir import calls
from gateway.ir.calls import Call, InferRequest, InferResponse, ModelReadyRequest
from gateway.ir.context import CallSequence, Client, Context, ModelRef, Need, Origin
from gateway.ir.errors import GatewayError
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors import tensor, validation
from gateway.ir.tensors.data import (
    ArrayData,
    ItemsData,
    RawData,
    SharedMemoryData,
    StreamedData,
    TensorData,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.policies import forward_headers
from gateway.policies.complete import policy as complete
from gateway.policies.complete import untyped
from gateway.policies.hand_over import policy as hand_over
from gateway.policies.limits import deadline as deadlines
from gateway.policies.limits import policy as limits
from gateway.protocols.oip.grpc import decode, encode, infer, scan
from gateway.protocols.oip.http import codec as http_codec
from gateway.protocols.oip.http import infer_request, infer_response
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.json import binary_tensors, elements, templates, write
from gateway.protocols.oip.json.binary_tensors import LENGTH_HEADER
from gateway.protocols.openai.http import embeddings
from gateway.protocols.tfs.grpc import messages as predict
from gateway.protocols.tfs.http.predict import read_tensors, row_rules
from gateway.protocols.tfs.options import TfsOptions
from gateway.telemetry import upstream_metrics
from gateway.transports import authentication, callers
from gateway.transports.client_shares import ClientShares
from gateway.transports.contract import ServerLimits
from gateway.transports.grpc import (
    client_call,
    client_pool,
    headers,
    messages,
    server_call,
    server_connection,
)
from gateway.transports.grpc.client_call import ClientCall
from gateway.transports.grpc.headers import GrpcRequestHead, GrpcResponseHead
from gateway.transports.grpc.server_call import ServerCall
from gateway.transports.grpc.server_connection import GrpcServerConnection
from gateway.transports.http import client_rules
from gateway.transports.http import response_writer as http_response_writer
from gateway.transports.http.exchange import Exchange
from gateway.transports.http.faults import HttpError
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.request_head import Head, read_head
from gateway.transports.http1 import client as http1_client
from gateway.transports.http1 import head_reader, head_template, response_reader
from gateway.transports.http1.head_reader import (
    MAX_CACHED_BYTES,
    HeadReader,
    RequestHead,
    RequestHeadCache,
)
from gateway.transports.http1.head_template import HeaderTemplate
from gateway.transports.http1.request import BufferedRequest
from gateway.transports.http2 import connection, frames, hpack, streams
from gateway.transports.http2.connection import Http2Connection
from gateway.transports.http2.flood_control import FloodBudget
from gateway.transports.http2.frames import Http2ConnectionError
from gateway.transports.http2.states import CLOSED, HALF_CLOSED_REMOTE, OPEN
from gateway.transports.http2.streams import Http2Stream, Http2StreamWriter
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.reservation import Reservation
from gateway.wire import http, message_cache
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.heads import fields as header_fields
from gateway.wire.heads import metadata
from gateway.wire.http import ExtendedHeaders, Headers, HttpRequest, HttpResponse
from gateway.wire.message_cache import MaskedMessageCache
from gateway.wire.protobuf import tensor_protos
from gateway.wire.protobuf.wire_format import FieldCounter, WireError
from gateway.wire.rows import read as rows
from gateway.wire.rows import regular_lists
from gateway.wire.rows import templates as row_templates
from gateway.wire.rows import write as row_values
from gateway.wire.rows import write_few as few_rows
from gateway.wire.rows.read import read_rows_document
from gateway.wire.rows.templates import RowTemplates
from tests.http_client_parts import CLIENT_CALLERS, CLIENT_CLASSES, CLIENT_PARTS

Part = Callable[[Random], tuple[Any, ...]]
"""Returns the arguments of a function, and then those of the function that it returns, if any."""

MODULES: Final = (
    message_cache,
    decode,
    encode,
    scan,
    infer,
    binary_tensors,
    http_codec,
    infer_request,
    infer_response,
    elements,
    templates,
    write,
    messages,
    headers,
    client_call,
    client_pool,
    server_call,
    connection,
    frames,
    streams,
    http_response_writer,
    head_template,
    head_reader,
    response_reader,
    metadata,
    client_rules,
    forward_headers,
    callers,
    header_fields,
    embeddings,
    http,
    authenticator,
    authentication,
    server_connection,
    hpack,
    few_rows,
    regular_lists,
    rows,
    row_templates,
    untyped,
    calls,
    complete,
    limits,
    deadlines,
    frontend,
    upstream_metrics,
    validation,
    hand_over,
    outputs,
    tensor,
    http1_client,
)
"""All modules that have such functions."""

CLASSES: Final = (
    Exchange,
    Limiter,
    Http2Connection,
    Http2StreamWriter,
    ServerCall,
    GrpcServerConnection,
    *CLIENT_CLASSES,
)
"""All classes that have such methods."""

_INTEGERS: Final = "bBhHiIqQ"
_WORDS: Final = (
    b'"data":',
    b'"data": ',
    b'"id":',
    b'"id": ',
    b'"name":"X",',
    b'{"inputs":[',
    b"]}",
)


def split_holes(random: Random) -> tuple[bytes]:
    """Return a message with some holes, or the like of it."""
    pieces = []
    for _ in range(random.randrange(8)):
        pieces.append(random.choice(_WORDS))
        pieces.append(
            random.choice((_list(random, "f", 3), b'"a-1"', b"[[1,2],[3,4]]", b"[]", b""))
        )
    return (damaged(random, b"".join(pieces), b'"[]{}:, data id01eE.\0\xff'),)


def template_parser(random: Random) -> tuple[Any, ...]:
    """Return the templates of some requests, and messages that are nearly of their forms."""
    codec = HttpCodec(DEFAULT_LIMITS, {})
    texts, messages = [], []
    for _ in range(random.randrange(1, 4)):
        text, tail = _request(random)
        length = len(text) if tail or random.random() < 0.2 else None
        pairs = () if length is None else ((LENGTH_HEADER, str(length)),)
        body = (memoryview(text + tail),)
        for _ in range(random.choice((2, 2, 2, 1))):
            codec.decode_call(HttpRequest("POST", "/v2/models/m/infer", "", Headers(pairs), body))
        texts.append((text, tail))
    for _ in range(random.randrange(1, 6)):
        text, tail = random.choice(texts)
        if random.random() < 0.5:
            text = text.replace(b"1", random.choice((b"7", b"10", b"1.5", b"-1", b"1e3")))
        text = damaged(random, text, b'"[]{}:, data id01eE.\0\xff')
        tail = tail[random.random() < 0.05 :]
        messages.append((memoryview(text + tail), len(text)))
    limits = random.choice(((8191, 1024), (8191, 3), (100, 1024)))
    return codec.request_templates._kept.get, *limits, messages


# Packed, one by one, empty, texts, and two fields at once.
_ELEMENTS: Final = (b"", b":\2\1\x7f", b"8\5", b":\0", b"B\0B\1a", b"-abcd*\4efgh", b"8\1P\xff\1")
_LIMITS: Final = (
    DEFAULT_LIMITS,
    DEFAULT_LIMITS,
    DEFAULT_LIMITS,
    MessageLimits(name_bytes=17, model_name_bytes=1),
    MessageLimits(name_bytes=20, model_name_bytes=1),
    MessageLimits(parameters=0),
    MessageLimits(tensors=1, outputs=1),
    MessageLimits(elements=2, rank=1),
    MessageLimits(dim=1, message_bytes=12),
    MessageLimits(json_depth=4, json_keys=3),
    MessageLimits(json_bytes=100),
)
_MODEL: Final = ModelRef("m")


def request_reader(random: Random) -> tuple[Any, ...]:
    """Return limits, and requests most of which have the usual members."""
    messages = []
    for _ in range(random.randrange(1, 6)):
        document, tail = _any_request(random)
        kwargs: dict[str, Any] = random.choice(
            ({"separators": (",", ":")}, {}, {"indent": 1}, {"separators": (" ,", ":\t")})
        )
        text = json.dumps(document, **kwargs).encode()
        if random.random() < 0.5:
            text = text.replace(b"1", random.choice((b"7", b"10", b"1.5", b"-1", b"1e3", b"01")), 1)
        text = damaged(random, text, b'"[]{}:, data id01eE.\0\xff\\')
        is_whole = not tail and random.random() < 0.8
        messages.append((_MODEL, memoryview(text + tail), None if is_whole else len(text)))
    return random.choice(_LIMITS), messages


def _any_request(random: Random) -> tuple[dict[str, Any], bytes]:
    """Return a request, most of whose members are usual, and the bytes after it."""
    tail = b""
    inputs = []
    for index in range(random.choice((0, 1, 2, 2, 3, 17))):
        member, own = _any_input(random, random.choice(("X", f"X{index}", "x" * 21, *_TEXTS[:3])))
        tail += own
        inputs.append(member)
    members: list[tuple[str, Any]] = [("inputs", inputs)]
    if random.random() < 0.5:
        members.append(("id", random.choice(("a-1", "", "\u00e9", "a:b", "\n", None, 1))))
    if random.random() < 0.3:
        outputs = [_any_output(random) for _ in range(random.randrange(4))]
        members.append(("outputs", random.choices((outputs, None, {}), (20, 1, 1))[0]))
    if random.random() < 0.3:
        flag = {"binary_data_output": random.choice((True, False))}
        members.append(("parameters", random.choice((flag, flag, {}, {"k": 1}, None))))
    if random.random() < 0.05:
        members.append(("k", [1, {"k": "v"}]))
    random.shuffle(members)
    return dict(members), tail[: len(tail) - (random.random() < 0.05)]


def _any_input(random: Random, name: str) -> tuple[dict[str, Any], bytes]:
    """Return an input, and its bytes after the JSON."""
    datatype = random.choice((Datatype.INT32, Datatype.FP32, *Datatype))
    shape = random.choice(([2], [2], [1, 3], [], [0], [1] * 9, [0, 5], [-1]))
    count = math.prod(shape) + (random.random() < 0.05)
    value: Any = "a" if datatype is Datatype.BYTES else random.choice((1, 1, -1, 1.5, 1e39, True))
    data: Any = [value] * max(count, 0)
    if len(shape) == 2 and random.random() < 0.3:
        data = [data]
    members = [("name", name), ("shape", shape), ("datatype", datatype.value)]
    own = b""
    if random.random() < 0.3:
        own = bytes(max(count, 0) * datatype.size_bytes)
        parameters: dict[str, Any] = {"binary_data_size": len(own)}
        members.append(("parameters", random.choice((parameters, {**parameters, "k": 1}))))
    else:
        members.append(("data", data))
    if random.random() < 0.05:
        members.append(("parameters", random.choice(({}, None, {"k": 1}))))
    if random.random() < 0.5:
        random.shuffle(members)
    return dict(members[: len(members) - (random.random() < 0.03)]), own


def _any_output(random: Random) -> dict[str, Any]:
    """Return a requested output, most of which have only a name or are binary."""
    flag = {"binary_data": random.choice((True, False))}
    output: dict[str, Any] = {"name": random.choice(("Y", "Z", "y" * 21, *_TEXTS[:3]))}
    if random.random() < 0.6:
        output["parameters"] = random.choice((flag, flag, {}, None, {"classification": 2}))
    return output


def number_packer(random: Random) -> tuple[str, int, bytes]:
    """Return a list of as many numbers as are expected, nearly always."""
    code = random.choice(_INTEGERS + "fde?")
    count = random.choice((0, 1, 2, 5, 40))
    text = _list(random, code, count + (random.random() < 0.1))
    return code, count, damaged(random, text, b"[]-+., 0123456789eE")


def integer_writer(random: Random) -> tuple[str, int, bytes]:
    """Return raw integers of the right size, nearly always."""
    code = random.choice(_INTEGERS)
    count = random.choice((0, 1, 2, 5, 64, 600))
    edges = (b"\0", b"\xff", b"\x7f", b"\x80", b"\x01", b"\x0a", b"\x63")
    raw = b"".join(random.choices(edges, k=count * struct.calcsize(code)))
    return code, count, raw[: len(raw) - (random.random() < 0.1)]


def row_parser(random: Random) -> tuple[Any, ...]:
    """Return the templates of some messages of rows, and messages of nearly their forms."""
    templates: RowTemplates[bool] = RowTemplates(DEFAULT_LIMITS)
    texts, messages = [], []
    for _ in range(random.randrange(1, 4)):
        text = _rows(random)
        for _ in range(random.choice((2, 2, 2, 1))):
            found, cut = templates.parse(memoryview(text))
            if found is None and cut is not None:
                document = read_rows_document(memoryview(text), "the body", DEFAULT_LIMITS)
                rules = row_rules(TfsOptions(), DEFAULT_LIMITS)
                tensors, is_rows = read_tensors(document, DEFAULT_LIMITS, rules)
                templates.learn(cut, is_rows, tensors)
        texts.append(text)
    for _ in range(random.randrange(1, 6)):
        text = random.choice(texts)
        if random.random() < 0.5:
            text = text.replace(b"1", random.choice((b"7", b"10", b"1.5", b"-1", b"1e3", b"2, 3")))
        messages.append((memoryview(damaged(random, text, b'"[]{}:, 01eE.-\0\xff')),))
    limits = random.choice(((8191, 1 << 20), (8191, 3), (100, 1 << 20)))
    return templates._kept.get, *limits, messages


def packed_numbers(random: Random) -> tuple[bytes, str, tuple[int, ...]]:
    """Return nested lists of numbers and their shape, nearly always."""
    code = random.choice(_INTEGERS + "fde?")
    shape = random.choice(((2,), (1, 3), (2, 3), (2, 1, 2), (1,) * 9, (0,)))
    inner = [_list(random, code, shape[-1]) for _ in range(math.prod(shape[:-1]))]
    for dim in reversed(shape[:-1]):
        groups = [inner[at : at + dim] for at in range(0, len(inner), dim)]
        inner = [b"[%b]" % random.choice((b",", b", ", b" ,")).join(group) for group in groups]
    dims = random.choice((shape, (-1, *shape[1:]), (*shape[:-1], -1), (*shape, 1), shape[1:]))
    return damaged(random, inner[0], b"[]-+., 0123456789eE"), code, dims


def has_regular_lists(random: Random) -> tuple[bytes | memoryview]:
    """Return a text with nested lists, which are regular half of the time."""
    texts = (
        packed_numbers(random)[0],
        _rows(random),
        b'["\\\\\\"", "[1"]',
        b"[" * 40 + b"1" + b"]" * 40,
    )
    text = damaged(random, random.choice(texts) + random.choice(texts), b'"[]{}\\, 1')
    return (random.choice((text, memoryview(text))),)


def row_writer(random: Random) -> tuple[Any, ...]:
    """Return cached parts, and outputs, which have the same number of rows now and then."""
    lists = [tensors for _, _, tensors in _messages(random, with_outputs=False)]
    few = [each for tensors in lists for each in tensors if each.shape in ((1, 3), (2, 64))]
    lists += [(each,) for each in few] + [tuple(few[:2])]
    return few_rows.row_part, [(tensors, random.random() < 0.5) for tensors in lists]


def _rows(random: Random) -> bytes:
    """Return a message with rows or columns, most of which are lists of numbers."""
    values = ([1, 1], [[1, 1.5], [1, 1]], [[[1]], [[1]]], [1e300, -1], 1, ["a", "b"], [[1], [1, 1]])
    names = random.choice((("a",), ("a", "\u00e9.b"), ("b64",), ("x", "x[1]")))
    row = {name: random.choice(values) for name in names}
    document: dict[str, Any] = random.choice(
        (
            {"instances": random.choice(values[:4])},
            {"instances": [row] * random.choice((1, 2, 20))},
            {"inputs": row},
            {"inputs": random.choice(values)},
        )
    )
    if random.random() < 0.3:
        document["signature_name"] = random.choice(("", "s", "[1]"))
    return json.dumps(document, separators=random.choice(((",", ":"), (", ", ": ")))).encode()


def message_writer(random: Random) -> tuple[Any, ...]:
    """Return cached parts, and messages of some forms."""
    parts = encode.field_parts(encode.RAW_INPUTS, None)
    return encode._model, parts, encode._output, _messages(random, with_outputs=True)


def field_parts(random: Random) -> tuple[Any, ...]:
    """Return descriptions of tensors, some of a datatype that needs more checks."""
    found = [_description(random) for _ in range(random.randrange(1, 6))]
    return random.choice((encode.RAW_INPUTS, encode.RAW_OUTPUTS)), Datatype.BF16, found


def _description(random: Random) -> tuple[str, Datatype | None, tuple[int, ...] | None]:
    """Return a name, a datatype and a shape."""
    shape = random.choice((*_SHAPES, (1,) * 9, (1 << 40,), (-1,), (0, 1 << 29), (1 << 20, 1 << 20)))
    return (
        random.choice((*_TEXTS, "x" * 300)),
        random.choice((None, *Datatype)),
        random.choice((shape, shape, shape, None)),
    )


def binary_part(random: Random) -> tuple[Any, ...]:
    """Return the kind and the description of a tensor."""
    return random.choice(("input", "output")), *_description(random)


def message_scanner(random: Random) -> tuple[Any, ...]:
    """Return limits, and messages of tensors, of which nearly all have raw contents."""
    writer = encode.InferEncoder()
    is_request = random.random() < 0.6
    messages = []
    for model, request_id, tensors, *wanted in _messages(random, with_outputs=is_request):
        parameters = random.choices(({}, {"k": 1}), (10, 1))[0]
        with suppress(GatewayError):
            parts = (
                writer.request(model, request_id, parameters, tensors, *(wanted or ((),)))
                if is_request
                else writer.response(model, request_id, parameters, tensors)
            )
            message = damaged(random, b"".join(parts), b"\0\n\x12\x1a\x7f\xff")
            messages.append((message, random.choice((FieldCounter().remaining, 6))))
    raw_tag = scan.RAW_INPUTS if is_request else scan.RAW_OUTPUTS
    return random.choice(_LIMITS), raw_tag, messages


def described_reader(random: Random) -> tuple[Any, ...]:
    """Return a description, and its messages with the fields that each may have."""
    descriptor = random.choice((predict.REQUEST, tensor_protos.TENSOR, tensor_protos.TENSOR_SHAPE))
    messages: list[tuple[bytes, int]] = []
    for model, _, tensors, *_wanted in _messages(random, with_outputs=False):
        with suppress(GatewayError, WireError):
            spec = predict.spec_message(model.name, random.choice((0, 1, 300)), "s")
            names = random.choices(_TEXTS, k=random.choice((0, 1, 2, 40)))
            message = predict.REQUEST.write(
                spec=spec, tensors=predict.tensor_entries(tensors[:3]), filter=names
            )
            shape = tensor_protos.shape_message(random.choice((*_SHAPES, None)))
            if descriptor is tensor_protos.TENSOR_SHAPE:
                message = shape
            if descriptor is tensor_protos.TENSOR:
                message = tensor_protos.TENSOR.write(number=3, shape=shape, content=b"abcd")
                message.append(bytearray(random.choice(_ELEMENTS)))
            found = damaged(random, b"".join(message), b"\0\n\x12\x1a\x7f\xff")
            messages.append((found, random.choice((FieldCounter().remaining, 6))))
    return descriptor, messages


def response_writer(random: Random) -> tuple[Any, ...]:
    """Return cached texts, and replies of some forms."""
    integers = partial(write.few_integers, "output")
    return infer_response._model, integers, _messages(random, with_outputs=False)


def plain_reader(random: Random) -> tuple[Any, ...]:
    """Return the cached parts of messages, and messages of nearly the same forms."""
    scanner = scan.InferMessageScanner(DEFAULT_LIMITS)
    writer = encode.InferEncoder()
    known = []
    for model, request_id, tensors in _messages(random, with_outputs=False):
        with suppress(GatewayError):
            parts = writer.request(model, request_id, {}, tensors, ())
            message = b"".join(parts)
            for _ in range(3):
                scanner.scan(memoryview(message), scan.RAW_INPUTS)
            known.append(message)
    messages = [(memoryview(damaged(random, message, b"\0\n\x7f\xff")),) for message in known]
    return scanner.cached(scan.RAW_INPUTS), random.choice((2, 1024)), messages


def request_decoder(random: Random) -> tuple[Any, ...]:
    """Return the parsers of some requests, and requests that are known or are not."""
    limits, messages = request_reader(random)
    templates = infer_request.RequestTemplates(limits)
    read = infer_request.request_reader(limits)
    wires = []
    for model, view, length in messages:
        pairs: list[tuple[str, str]] = [("x-request-id", "a-1")] if random.random() < 0.3 else []
        if length is not None:
            sent = random.choices((length, 0, length + 1000), (20, 1, 1))[0]
            pairs.append((LENGTH_HEADER, str(sent)))
        body = random.choices(((view,), [view], (bytes(view),)), (20, 1, 1))[0]
        deadline = random.choice((None, 7.0))
        wire = HttpRequest("POST", "/", "", _headers(random, tuple(pairs)), body, deadline)
        for _ in range(random.choice((0, 2))):
            with suppress(GatewayError):
                templates.decode(model, wire, "")
        wires.append((model, wire, random.choice(("", "g-1"))))
    return templates.parse, read, lambda *_learned: None, wires


def reply_reader(random: Random) -> tuple[Any, ...]:
    """Return what reads known replies, and calls with replies that are known or are not."""
    scanner = scan.InferMessageScanner(DEFAULT_LIMITS)
    writer = encode.InferEncoder()
    pairs = []
    for model, reply_id, tensors in _messages(random, with_outputs=False):
        with suppress(GatewayError):
            parameters = random.choices(({}, {"k": 1}), (10, 1))[0]
            message = b"".join(writer.response(model, reply_id, parameters, tensors))
            for _ in range(random.choice((1, 3, 3))):
                scanner.scan(memoryview(message), scan.RAW_OUTPUTS)
            call = _call(random, random.choice((reply_id, reply_id, "", "b")), ())
            view = memoryview(message)
            parts = random.choices(((view,), [view], (message,), (view, b"")), (20, 1, 1, 1))[0]
            status = random.choices((GrpcStatus.OK, GrpcStatus.INTERNAL), (20, 1))[0]
            pairs.append((call, GrpcResponse(parts, status)))
    like = InferResponse(model=ModelRef(""), outputs=(), has_nonfinite_words=True)
    return decode.plain_reader(scanner.cached(scan.RAW_OUTPUTS), 1024), like, pairs


def _call(random: Random, request_id: str, inputs: tuple[Tensor, ...]) -> Call[Any]:
    """Return a call, nearly always a plain inference."""
    context = Context(
        "c",
        random.choice(((), (("x-a", "1"),), (("x-request-id", "b"),))),
        random.choice(("", "r-1")),
        random.choice((None, 7.0)),
    )
    model = ModelRef("m", random.choice(("", "1", "a", "\u0661")))
    plain = InferRequest(model=model, context=context, inputs=inputs, id=request_id)
    outputs = (RequestedOutput("Y"),)
    others: tuple[Call[Any], ...] = (
        ModelReadyRequest(model=model, context=context),
        plain.changed(outputs=outputs),
        plain.changed(model=None),
        plain.changed(parameters={"k": 1}),
        plain.changed(sequence=CallSequence(1)),
        plain.changed(priority=1),
        plain.changed(timeout_us=0),
    )
    return plain if random.random() < 0.7 else random.choice(others)


def call_writer(random: Random) -> tuple[Any, ...]:
    """Return what writes messages, and calls."""
    write = encode.FastInferEncoder(encode.RAW_INPUTS).write
    messages = _messages(random, with_outputs=False)
    return write, "/s/m", [(_call(random, each[1], each[2]),) for each in messages]


def plain_call(random: Random) -> tuple[Any, ...]:
    """Return a request, what it has, and an id."""
    metadata = random.choice(((), (("x-a", "1"),), (("x-request-id", "b"), ("a-bin", b"\0"))))
    wire = GrpcRequest("/s/m", (), metadata, random.choice((None, 7.0)))
    columns = random.choice((None, ((), (), (), ())))
    message = scan.InferMessage(ModelRef("m", "1"), {}, [], [], columns)
    _, request_id, tensors = _messages(random, with_outputs=False)[0]
    return wire, (message, request_id, tensors), random.choice(("", "g-1"))


def binary_writer(random: Random) -> tuple[Any, ...]:
    """Return cached texts, and tensors of some messages."""
    messages = _messages(random, with_outputs=False)
    return partial(write.binary_part, "input"), [(tensors,) for _, _, tensors in messages]


def layout_finder(random: Random) -> tuple[Any, ...]:
    """Return the layouts of some messages, and messages that repeat around their holes, mostly."""
    cache: MaskedMessageCache[bytes] = MaskedMessageCache(8, 40)
    known = []
    for _ in range(random.randrange(8)):
        message = bytes(random.choices(b"ab", k=random.choice((4, 4, 40, 60))))
        ends = sorted(random.choices(range(len(message) + 1), k=random.choice((2, 4))))
        holes = [slice(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
        cache.put(memoryview(message), holes, message)
        known.append((message, holes[0]))
    messages = []
    for message, hole in known:
        other = bytearray(message)
        other[hole] = random.randbytes(len(other[hole]))
        messages.append((memoryview(damaged(random, bytes(other), b"ab")),))
    return cache._layouts, messages


def take_request(random: Random) -> tuple[Any, ...]:
    """Return frames of one or two calls in pieces, most of them whole."""
    from tests.unit.transports.http2.test_fast_paths import CALLS  # noqa: PLC0415  # no test of conftest

    return _pieces(random, CALLS), False


def take_response(random: Random) -> tuple[Any, ...]:
    """Return frames of one or two responses in pieces, most of them whole."""
    from tests.unit.transports.http2.test_fast_paths import ANSWERS  # noqa: PLC0415  # as above

    return _pieces(random, ANSWERS), True


def _pieces(random: Random, messages: Mapping[str, bytes]) -> list[bytes]:
    short = [each for each in messages.values() if len(each) < 4096]
    pieces = [random.choice(short) for _ in range(random.randrange(1, 3))]
    if random.random() < 0.5:
        pieces[-1] = damaged(random, pieces[-1], b"\0\1\4\5\x80\xff")
    return pieces


def copy_data(random: Random) -> tuple[Any, ...]:
    """Return DATA frames, a position, what may arrive, and room for their content."""
    sizes = [random.choice((0, 255, 256, 300, 1000)) for _ in range(random.randrange(5))]
    sent = random.randbytes(rest := random.choice((0, 0, 7, 300)))
    for size in sizes:
        kind, flags, number = (random.choice((0,) * 9 + (1,)) for _ in range(3))
        sent += frames.frame(kind, flags, number, random.randbytes(size))
    sent = sent[: random.choice((len(sent), random.randrange(len(sent) + 1)))]
    window, room = random.choice((0, 500, 9000)), random.choice((0, 300, 301, 9000))
    return random.choice((bytes, memoryview))(sent), 0, 0, rest, window, memoryview(bytearray(room))


def address_of(random: Random) -> tuple[memoryview]:
    """Return a part of a buffer."""
    return (memoryview(_BUFFER)[random.randrange(len(_BUFFER)) :],)


_BUFFER: Final = bytes(64)


def new_stream(random: Random) -> tuple[Any, ...]:
    """Return the number, the windows and the owner of a stream."""
    return random.choice((1, 2, 0x7FFFFFFF)), 65_535, random.choice((0, -1, 65_535)), None


def new_call(random: Random) -> tuple[Any, ...]:
    """Return the head of a call, with a timeout or without."""
    timeout_s = random.choice((None, 0.0, 1.5))
    return "connection", "stream", GrpcRequestHead("/a/b", (), timeout_s, "", 200, 0), "method"


def send_joined(random: Random) -> tuple[Any, ...]:
    """Return a writer and one of its streams, in any state, and what is written."""
    found: dict[int, Http2Stream] = {}
    writer = Http2StreamWriter([], FloodBudget(), found, lambda _stream: None)
    stream = found[3] = Http2Stream(3, random.choice((0, 5, 65_535)), 65_535, None)
    stream.state = random.choice((OPEN, HALF_CLOSED_REMOTE))
    writer._room = random.choice((0, 5, 65_535))
    writer.is_paused, writer.has_shrunk = random.random() < 0.1, random.random() < 0.1
    return writer, stream, b"frames", random.choice((0, 5, 6))


def answer(random: Random) -> tuple[Any, ...]:
    """Return a call of a client, and the head, the message and the trailers of its response."""
    stream = Http2Stream(3, 65_535, 65_535, "the owner")
    stream.state = random.choice((CLOSED, CLOSED, OPEN))
    stream.unread = random.choice((0, 0, 4))
    waiter = random.choice((WatchedWaiter(), WatchedWaiter(), None))
    view, limit = whole_message(random)
    call = ClientCall(WatchedCalls(), stream, limit, 0, random.random() < 0.9, waiter)  # type: ignore[arg-type]
    ok, other = GrpcStatus.OK, GrpcStatus.INTERNAL
    head = GrpcResponseHead(
        random.choice((200, 200, 200, 500, None)),
        random.random() < 0.9,
        random.choice((None, None, ok)),
        "",
        (),
        "",
    )
    status = random.choice((None, None, None, 200))
    tail = GrpcResponseHead(status, True, random.choice((ok, ok, other)), "", (("a", "1"),), "")
    return call, head, view, tail


class WatchedWaiter:
    """A future that notes its result."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def done(self) -> bool:
        return bool(self.results)

    def set_result(self, result: Any) -> None:
        self.results.append((bytes(result.view), result.metadata))


class WatchedCalls:
    """A connection that notes which of its calls end, and is its own core."""

    name = "server"

    def __init__(self) -> None:
        self.core = self
        self.events: list[str] = []

    def cancel(self, stream: Http2Stream) -> None:
        self.events.append("cancel")
        stream.state = CLOSED

    def flush(self) -> None:
        self.events.append("flush")

    def on_cancelled(self) -> None:
        self.events.append("cancelled")


def join_stream(random: Random) -> tuple[int, bytes, list[Any], int, bytes | None]:
    """Return a header block, content in several buffers, and trailers or none."""
    buffers = _buffers(random)
    number = random.choice((1, 2, 255, 256, 0x7FFFFFFF))
    tail = random.choice((None, b"", random.randbytes(random.randrange(300))))
    return number, random.randbytes(random.randrange(300)), buffers, sum(map(len, buffers)), tail


def join_call(random: Random) -> tuple[Any, ...]:
    """Return a message, with metadata before and after it or without, in any size."""
    number, block, buffers, size, tail = join_stream(random)
    if random.random() < 0.1:
        buffers.append(bytes(random.choice((7000, 7700, 9000))))
        size = sum(map(len, buffers))
    head, trailers = (with_metadata(random)[1] for _ in range(2))
    return number, block, head, buffers, size, tail, trailers


def whole_message(random: Random) -> tuple[memoryview, int]:
    """Return a message with its prefix, nearly always whole."""
    content = random.randbytes(random.choice((0, 1, 255, 256, 300)))
    data = struct.pack(">BI", 0, len(content)) + content
    return memoryview(damaged(random, data, b"\0\1\xff")), random.choice((0, 255, 1 << 20))


_KEYS: Final = (
    *("x-request-id", "a", "k" * 126, "k" * 127, "", "te", "host", "grpc-x", "grpc_x", "x-bin"),
    *("-bin", "Upper", "two words", "é", "日", "nul\0", "x.y_z-9"),
)


def with_metadata(random: Random) -> tuple[bytes, Any]:
    """Return a header block, and metadata that is plain text, nearly always."""
    pairs: list[Any] = []
    for _ in range(random.choice((0, 1, 2, 5, 64, 65))):
        key = random.choice(_KEYS) if random.random() < 0.2 else "x-request-id"
        value: object = "v" * random.choice((0, 1, 36, 126))
        if random.random() < 0.2:
            odd = (
                "v" * 127,
                "v" * 1000,
                "é",
                "日本",
                "a\n",
                "\x7f",
                "~ ",
                b"",
                b"\0" * 40,
                "\ud800",
            )
            value = random.choice(odd)
        pairs.append((key, value) if random.random() < 0.99 else (key, value, 1))
    block = random.randbytes(random.randrange(300))
    return block, pairs if random.random() < 0.1 else tuple(pairs)


def join_response(random: Random) -> tuple[bytes, bytes, str, bool, int, bytes, Any]:
    """Return the parts of a response, with a safe request id, nearly always."""
    ids = (
        "",
        "r" * 36,
        "~ ",
        "r" * 126,
        "r" * 127,
        "r" * 1000,
        "a\r\nb",
        "\x7f",
        "é",
        "日本",
        "\0",
    )
    body = _buffers(random)
    length = sum(map(len, body))
    if not body or random.random() < 0.1:
        length, body = random.choice((-1, 0, 9, 10, 1 << 40)), []
    rest = (random.randbytes(random.randrange(40)) for _ in range(3))
    request_id, varies = random.choice(ids), random.random() < 0.5
    return next(rest), next(rest), request_id, varies, length, next(rest), tuple(body)


_SPLIT_NAMES: Final = (
    *(b"traceparent", b"X-Request-Id", b"authorization", b"A", b"x" * 63, b"x" * 64, b"x" * 300),
    *(b"Host", b"host", b"Content-Type", b"Content-Length", b"content-length"),
    *(
        b"Transfer-Encoding",
        b"transfer-encodin",
        b"transfer-encoding ",
        b"",
        b"a b",
        b"a\tb",
        b"\xe9",
    ),
)
_SPLIT_VALUES: Final = (
    *(b"", b" ", b"\t", b" a", b"a \t", b"a\tb", b"0", b"1", b" 12 ", b"012", b"9" * 15, b"9" * 16),
    *(b"+1", b"1,2", b"v" * 7, b"v" * 8, b"v" * 9, b"v" * 1500, b"\x7f", b"\x1f", b"\x80", b"\xff"),
    *(b"vvvvvvvv\x7f", b"\0vvvvvvvv", b"\r", b"\n", b"a\rb", b"a\nb: c", b"vvvvvvv\xe9"),
)
_FIRST_LINES: Final = (
    *(
        b"POST /v2/models/m/infer HTTP/1.1",
        b"GET / HTTP/1.0",
        b"GET /?a=b#c HTTP/1.1",
        b"GET * HTTP/1.1",
    ),
    *(
        b"get / HTTP/1.1",
        b"GET  / HTTP/1.1",
        b"GET / x HTTP/1.1",
        b"GET /",
        b"",
        b" ",
        b"HTTP/1.1 200 OK",
    ),
    *(b"GET /" + b"a" * 5000 + b" HTTP/1.1", b"GET http://h/ HTTP/1.1", b"POST /\xe9 HTTP/1.1"),
)


class _FilledFields(NamedTuple):
    """A template whose heads show what was filled in."""

    headers: HeaderTemplate

    def fill(self, target: str, length: int, headers: Headers, /) -> tuple[object, ...]:
        return target, length, headers.pairs, headers.lowered, headers.positions


def _no_template(_text: bytes) -> None: ...


def head_recogniser(random: Random) -> tuple[Any, ...]:
    """Return the templates of some heads, and heads that have nearly the same texts."""
    fixed = frozenset((b"host", b"transfer-encoding", b"content-type"))
    most_target = random.choice((0, 10, 8192))
    most_bytes = random.choice((0, 100, 16384))
    templates: dict[bytes, _FilledFields] = {}
    sent = []
    for _ in range(random.randrange(1, 5)):
        lines = [random.choice(_FIRST_LINES)]
        for _ in range(random.choice((0, 1, 3, 14, 300))):
            colon = random.choices((b":", b": ", b""), (5, 5, 0.1))[0]
            odd = random.random() < 0.1
            name = random.choice(_SPLIT_NAMES if odd else _SPLIT_NAMES[:12])
            lines.append(name + colon + random.choice(_SPLIT_VALUES if odd else _SPLIT_VALUES[:12]))
        head = b"\r\n".join([*lines, b"", b""])
        cut = head_template.head_recogniser(_no_template, fixed, 16384, most_target)(
            head, 0, len(head)
        )[1]
        if cut is not None and random.random() < 0.8:
            pairs = tuple((f"N{index}", "v") for index in range(len(cut[3])))
            lowered = pairs if random.random() < 0.5 else tuple((k.lower(), v) for k, v in pairs)
            places = tuple(random.choice((index, -1)) for index in range(len(cut[3])))
            fields = HeaderTemplate(pairs, lowered, places, {"n0": 0})
            templates[cut[0]] = _FilledFields(fields)
        # The head after one that fits a template is compared with its text first.
        for is_other in (False, random.random() < 0.3, random.random() < 0.8):
            before = random.randbytes(random.randrange(3))
            head = damaged(random, head, b"\r\n: \t\0aA1\x7f\xff") if is_other else head
            if head.endswith(b"\r\n\r\n"):
                sent.append((before + head + b"body", len(before), len(before) + len(head)))
    return templates.get, fixed, most_bytes, most_target, sent


_TARGETS: Final = ("", "/", "/v2/models/m/infer", "/a?b=c", "/a?b?c", "?", "/\xe9?a", "/日")


def _filled_slots(random: Random) -> list[tuple[str, int, Headers]]:
    """Return targets, lengths and fields."""
    return [
        (
            random.choice(_TARGETS),
            random.choice((-1, 0, 5, 1 << 40)),
            Headers((("a", str(number)),)),
        )
        for number in range(random.randrange(4))
    ]


def request_filler(random: Random) -> tuple[Any, ...]:
    """Return a parsed head, and what fills its slots."""
    length, chunked = random.choice((None, 0, 17)), random.random() < 0.1
    timeout_s = random.choice((None, 1.5))
    checked = Head(
        "POST", "/a", "", Headers((("a", "b"),)), length, chunked, False, False, None, timeout_s
    )
    fields = [(b"a", b"b")]
    head = head_reader.RequestHead(
        "POST", (1, 1), random.random() < 0.1, length, chunked, checked, "/a", fields, b"raw"
    )
    return head, checked, _filled_slots(random)


def response_filler(random: Random) -> tuple[Any, ...]:
    """Return a parsed head, the largest body, and what fills its slots."""
    length = random.choice((None, 0, 17))
    head = response_reader.ResponseHead(200, Headers(()), [], length, False, True, -1)
    return head, random.choice((-1, 0, 16, 1 << 30)), _filled_slots(random)


_TEXT_VALUES: Final = (
    "",
    "a",
    "v" * 8,
    "v" * 36,
    "\x7f",
    "~ ",
    "a\n",
    "é",
    "日本",
    "\ud800",
    "v" * 9 + "\t",
)


def is_printable_ascii(random: Random) -> tuple[str]:
    """Return a text."""
    return (random.choice(_TEXT_VALUES) + random.choice(_TEXT_VALUES),)


def metadata_with_id(random: Random) -> tuple[Any, ...]:
    """Return metadata, and a request id or none."""
    keys = (*_KEYS[:2], "traceparent", "x-bin", "connection", "Upper", "grpc-x", "")
    pairs = [
        (random.choice(keys), random.choice((*_TEXT_VALUES, "YQ==", "YQ, Yg", "?")))
        for _ in range(random.randrange(5))
    ]
    return tuple(pairs), random.choice(("", "r-1"))


def headers_with_id(random: Random) -> tuple[Any, ...]:
    """Return headers, a request id or none, and a prefix or none."""
    return *metadata_with_id(random), random.choice(("", "trace", "x-"))


def field_lines(random: Random) -> tuple[Any, ...]:
    """Return header fields, nearly all of which may be sent."""
    names = ("X-One", "Host", "Accept-Encoding", "accept-encodinG", "te", "a_b", "a b", "", "é")
    pairs = [
        (random.choice(names), random.choice(_TEXT_VALUES)) for _ in range(random.randrange(6))
    ]
    coding = random.choice(((), (), ("",), ("é",)))
    return tuple(pairs), *coding


def extended_headers(random: Random) -> tuple[Any, ...]:
    """Return the fields of many messages, those of a call, and a request id or none."""
    base = Headers((("Content-Type", "application/json"),))
    kept = http.ExtendedHeaders(base, (("a", "b"),)) if random.random() < 0.1 else base
    return kept, *metadata_with_id(random)


def lines_of(random: Random) -> tuple[Any, ...]:
    """Return fields of a request, with or without those of a call."""
    base, more = (Headers(field_lines(random)[0]) for _ in range(2))
    if random.random() < 0.1:
        base = http.ExtendedHeaders(base, more.pairs)
    return (http.ExtendedHeaders(base, more.pairs) if random.random() < 0.8 else base,)


def json_length(random: Random) -> tuple[Any, ...]:
    """Return fields with or without the length of the JSON, as of a template or not."""
    name = random.choice((LENGTH_HEADER, LENGTH_HEADER.lower(), "Content-Length"))
    values = ("5", "0", "05", "x", "", "9" * 15, "9" * 19, "9" * 20, "é", "1" * 5000)
    pairs = [(name, random.choice(values)) for _ in range(random.choice((0, 1, 1, 2)))]
    pairs.insert(random.randrange(len(pairs) + 1), ("Content-Type", "a"))
    positions: dict[str, int] = {}
    for place, (key, _) in enumerate(pairs):
        positions.setdefault(key.lower(), place)
    return (Headers(pairs, None, random.choice((None, positions))),)


_METHOD_PATH: Final = "/a.B/C"


def on_complete_stream(random: Random) -> tuple[Any, ...]:
    """Return the head and the message of a call, most of which is unary and without a timeout."""
    path = random.choice((_METHOD_PATH, _METHOD_PATH, _METHOD_PATH, "/other"))
    view, limit = whole_message(random)
    head = GrpcRequestHead(
        path,
        (),
        random.choice((None, None, 0.0, 1.5)),
        "identity",
        random.choice((200, 200, 200, 405)),
        random.choice((0, 0, 0, 300)),
        random.choice((None, None, None, 0, len(view))),
    )
    return head, view, limit, random.random() < 0.8


def _wire_request(random: Random) -> tuple[Any, ...]:
    """Return the metadata of two calls of a connection, and how the second one was received.

    Its client may be known.
    """
    agents: tuple[tuple[tuple[str, str | bytes], ...], ...] = (
        (),
        (("user-agent", "a"),),
        (("x", "y"), ("user-agent", "b" * 300)),
        (("user-agent", b"bytes"),),
    )
    message = random.choice((None, None, messages.GrpcMessage(memoryview(b"ab"), "gzip")))
    client = random.choice((None, None, None, Client("10.1.2.3", "a")))
    return random.choice(agents), random.choice(agents), message, random.random() < 0.1, client


def response_lines(random: Random) -> tuple[Any, ...]:
    """Return header fields, nearly all of which may be sent."""
    names = ("X-One", "RateLimit", "Date", "dAtE", "a b", "", "é", "x" * 70)
    pairs = [
        (random.choice(names), random.choice(_TEXT_VALUES)) for _ in range(random.randrange(6))
    ]
    return (tuple(pairs),)


def first_value(random: Random) -> tuple[Any, ...]:
    """Return header fields or metadata, and the name of one of them, mostly."""
    names = (
        "user-agent",
        "User-Agent",
        "user-agen",
        "USER-AGENT",
        "ÉÉÉÉÉééééé",
        "\u0130",
        "X" * 70,
    )
    values = ("", "a", b"bytes", "é")
    pairs = [(random.choice(names), random.choice(values)) for _ in range(random.randrange(4))]
    return pairs if random.random() < 0.2 else tuple(pairs), "user-agent"


def texts_among(random: Random) -> tuple[Any, ...]:
    """Return header fields or metadata, and the names of some of them."""
    pairs, _ = first_value(random)
    names = random.choice((frozenset, set))(_some_names(random))
    return pairs, names


def pairs_without(random: Random) -> tuple[Any, ...]:
    """Return header fields or metadata, and the names of some of them."""
    pairs, _ = first_value(random)
    return tuple(pairs), random.choice((frozenset, set))(_some_names(random))


def _some_names(random: Random) -> list[str]:
    names = ("user-agent", "user-agen", "éééééééééé", "i\u0307", "x" * 70)
    return random.sample(names, random.randrange(len(names)))


def texts_and_id(random: Random) -> tuple[Any, ...]:
    """Return metadata, some of which is bytes."""
    ids = ("r-1", "", "a\n", "é", "r" * 128, "r" * 129, b"r-1")
    pairs: list[tuple[str, object]] = []
    for _ in range(random.randrange(5)):
        pair = random.choice((("a-bin", b"\0\xff"), ("a", "b"), ("x-request-ie", "z")))
        pairs.append(pair if random.random() < 0.6 else ("x-request-id", random.choice(ids)))
    return (tuple(pairs),)


_FIELDS: Final = (
    *((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C"), (b":authority", b"h")),
    *((b"content-type", b"application/grpc"), (b"te", b"trailers")),
    *((b"traceparent", b"00-1-2-01"), (b"user-agent", b"a/1"), (b"x-request-id", b"r" * 36)),
)
_ODD_FIELDS: Final = (
    *((b":method", b"GET"), (b":path", b""), (b":path", b"/\xff"), (b":odd", b""), (b"", b"")),
    *((b"content-type", b"application/grpc+proto"), (b"content-type", b"application/grpc-web")),
    *((b"content-type", b"application/json"), (b"content-type", b"application/grpc; a=b")),
    *((b"content-length", b"5"), (b"content-length", b"x"), (b"te", b"gzip"), (b"host", b"h")),
    *((b"grpc-timeout", b"5S"), (b"grpc-timeout", b"99999999n"), (b"grpc-timeout", b"999999999m")),
    *(
        (b"grpc-timeout", b"12H"),
        (b"grpc-timeout", b" 5u"),
        (b"grpc-timeout", b"S"),
        (b"grpc-", b""),
    ),
    *((b"grpc-encoding", b"GZIP"), (b"grpc-accept-encoding", b"gzip"), (b"a-bin", b"YQ, YQ==")),
    *(
        (b"-bin", b"?"),
        (b"Upper", b""),
        (b"a:b", b""),
        (b"a!", b"b"),
        (b"a", b"a\nb"),
        (b"a", b"\tb"),
    ),
    *((b"connection", b"close"), (b"upgrade", b"h2c"), (b"keep-alive", b"a"), (b"a", b"\xc3\xa9")),
    *((b"proxy-connection", b"a"), (b"transfer-encoding", b"chunked"), (b"a" * 65, b"")),
)


def read_call_block(random: Random) -> tuple[Any, ...]:
    """Return the block of a call with some odd fields, and the table of fields before it."""
    encoder, before, table = Encoder(), b"", hpack.NO_ENTRIES
    for number in range(random.choice((1, 1, 2, 3))):
        if random.random() < 0.1:
            encoder.header_table_size = random.choice((0, 100, 4096))
        make = random.choice((HeaderTuple, NeverIndexedHeaderTuple, HeaderTuple))
        fields = [make(*field) for field in _call_fields(random)]
        block = encoder.encode(fields, huffman=random.random() < 0.5)
        if number:
            with suppress(Http2ConnectionError):
                _, table = hpack.decode_block(before, table, 1 << 20)
        before = block
    if random.random() < 0.2:
        before = damaged(random, before, b"\0\x20\x3f\x40\x7f\x80\xbe\xff")
    return random.choice((1 << 20, 1 << 20, 300)), random.choice((100, 400, 16384)), before, table


def _call_fields(random: Random) -> list[tuple[bytes, bytes]]:
    """Return the fields of a call, some of them odd."""
    fields = list(_FIELDS)
    for _ in range(random.choices((0, 1, 3), (2, 4, 1))[0]):
        change = random.randrange(4)
        at = random.randrange(len(fields) + 1)
        if change == 0 and at < len(fields):
            del fields[at]
        elif change == 1 and at < len(fields):
            fields[at] = random.choice(_ODD_FIELDS)
        else:
            fields.insert(at, random.choice(_ODD_FIELDS + _FIELDS))
    return fields


_REPLY_FIELDS: Final = (
    *((b":status", b"200"), (b":status", b"503"), (b":status", b"099"), (b":status", b"20")),
    *(
        (b"grpc-status", b"0"),
        (b"grpc-status", b"5"),
        (b"grpc-status", b"16"),
        (b"grpc-status", b"17"),
    ),
    *(
        (b"grpc-status", b"00"),
        (b"grpc-status", b"-1"),
        (b"grpc-status", b""),
        (b"grpc-message", b"a"),
    ),
    *((b"grpc-message", b"a%20b"), (b"grpc-retry-pushback-ms", b"10"), (b"date", b"Thu")),
)


def read_response_head(random: Random) -> tuple[Any, ...]:
    """Return the fields of a response or its trailers, some of them odd."""
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-one", b"a")]
    if random.random() < 0.5:
        fields = [(b"grpc-status", b"0"), (b"server-timing", b"infer;dur=1.5")]
    for _ in range(random.choices((0, 1, 3), (2, 4, 1))[0]):
        at = random.randrange(len(fields) + 1)
        fields[at : at + random.randrange(2)] = [random.choice(_REPLY_FIELDS + _ODD_FIELDS)]
    return (fields if random.random() < 0.9 else tuple(fields),)


def decode_block(random: Random) -> tuple[Any, ...]:
    """Return a block of an encoder, damaged now and then, and the table of fields before it."""
    encoder, before, table = Encoder(), b"", hpack.NO_ENTRIES
    names = ("traceparent", "x-request-id", ":path", "content-type", "a")
    values = ("", "0", "00-1-2-01", "v" * 40, "w" * 130, "x" * 3000, "\xe9", "application/grpc")
    for number in range(random.randrange(1, 4)):
        if number and random.random() < 0.1:
            encoder.header_table_size = random.choice((0, 100, 4096))
        fields = [
            random.choice((HeaderTuple, NeverIndexedHeaderTuple))(
                random.choice(names), random.choice(values)
            )
            for _ in range(random.randrange(12))
        ]
        block = encoder.encode(fields, huffman=random.random() < 0.5)
        if number:
            with suppress(Http2ConnectionError):
                _, table = hpack.decode_block(before, table, 1 << 20)
        before = block
    if random.random() < 0.5:
        before = damaged(random, before, b"\0\x20\x3f\x40\x7f\x80\xbe\xff")
    return before, table, random.choice((1 << 20, 1 << 20, 200))


def pairs_named(random: Random) -> tuple[Any, ...]:
    """Return metadata, and which names are wanted."""
    keys = ("a", "b", "traceparent", "tracestate", "x-one")
    pairs = [(random.choice(keys), str(number)) for number in range(random.randrange(8))]
    wanted = {key: random.random() < 0.5 for key in keys}
    if random.random() < 0.1:
        del wanted["a"]
    return tuple(pairs), wanted


def base64_entries(random: Random) -> tuple[Any, ...]:
    """Rows of any size, and some counts that leave a rest."""
    count = random.choice((0, 1, 2, 9, 10, 11, 101))
    rows = random.randbytes(count * random.randrange(40) + random.randrange(3))
    return random.choice((rows, memoryview(rows))), count


class WatchedLimiter(Limiter):
    """A limiter that notes whom it would serve, instead of serving them."""

    def __init__(self, limit: int, share: int | None) -> None:
        super().__init__(limit, share=share)
        self.served: list[str] = []

    def _advance(self, _share: Share) -> None:
        self.served.append("share")

    def _grant(self) -> None:
        self.served.append("limit")


def try_acquire(random: Random) -> tuple[Any, ...]:
    """Return a limiter in any state, with or without the share of a client."""
    limiter, share = release(random)[::2]
    size = random.choice((1, 1, 3, 5, 1 << 70))
    held, skip_queue = random.choice((0, 0, 2)), random.random() < 0.2
    return limiter, size, share, held, skip_queue


def release(random: Random) -> tuple[Any, ...]:
    """Return a limiter whose callers wait for it, or for the share of their client, or not."""
    limiter = WatchedLimiter(random.choice((1, 6, 1 << 62)), random.choice((None, 3)))
    limiter.used = random.randrange(8)
    limiter.queued = random.choice((0, 0, 1))
    share = Share() if random.random() < 0.8 else None
    if limiter.queued:
        waiting: Any = limiter.waiting if share is None or random.random() < 0.5 else share.waiting
        waiting.append("a caller")
    if share is not None:
        share.used = random.randrange(5)
    return limiter, random.choice((1, 2)), share


def call_with_deadline(random: Random) -> tuple[Any, ...]:
    """Return a call, and a deadline or none."""
    context = Context("oip.http", (("a", "1"),), "id", random.choice((None, 5.0)))
    kind = random.choice((InferRequest, InferRequest, ModelReadyRequest))
    call = kind(model=ModelRef("m"), context=context)
    return call, random.choice((None, 1.5))


def call_with_metadata(random: Random) -> tuple[Any, ...]:
    """Return a call, and other metadata."""
    call, _ = call_with_deadline(random)
    return call, random.choice(((), (("traceparent", "1"), ("b", "2"))))


def is_incomplete(random: Random) -> tuple[Any, ...]:
    """Return tensors of which some lack something, and what is needed."""
    tensors = [
        Tensor(
            random.choice(("x", "x", "x", "")),
            random.choice((Datatype.INT32, Datatype.INT32, None)),
            random.choice(((1,), (), (2, 3), None)),
            RawData(memoryview(b"")),
        )
        for _ in range(random.randrange(4))
    ]
    every = (Need.NAMES, Need.DATATYPES, Need.SHAPES)
    needs = frozenset(each for each in every if random.random() < 0.7)
    return random.choice((tuple(tensors), tensors)), needs


def start_timeout(random: Random) -> tuple[Any, ...]:
    """Return a call with a deadline or without, the timeout of a route, and the time."""
    call, _ = call_with_deadline(random)
    origin = random.choice((None, Origin("oip.http", None), Origin("oip.http", None, None, True)))
    own_s, now = random.choice((0.0, 0.5, 60.0)), random.choice((1.0, 1.5, 5.0))
    return call.with_context(origin=origin), own_s, now


def wire_bytes(random: Random) -> tuple[Any, ...]:
    """Return a message of HTTP or gRPC, in any number of parts."""
    parts = random.choice((tuple, list))(_buffers(random))
    wires = (
        HttpRequest("POST", "/", body=parts),
        HttpResponse(200, body=parts),
        GrpcRequest("/a/b", parts),
        GrpcResponse(parts),
    )
    return (random.choice(wires),)


def are_declared(random: Random) -> tuple[Any, ...]:
    """Return tensors, and a declaration that they have, nearly always."""
    kinds = (Datatype.INT32, Datatype.INT32, None)
    shapes = ((2, 3), (2, 3), (2,), None)
    count = random.randrange(3)
    tensors = [
        Tensor(
            random.choice("ab"),
            random.choice(kinds),
            random.choice(shapes),
            RawData(memoryview(b"")),
        )
        for _ in range(count)
    ]
    declared = [
        TensorMetadata(random.choice("ab"), random.choice(kinds), random.choice((*shapes, (-1, 3))))
        for _ in range(count if random.random() < 0.9 else 1)
    ]
    return random.choice((tuple, list))(tensors), tuple(declared)


def has_large_input(random: Random) -> tuple[InferRequest]:
    """Return a request whose inputs have about 64 KiB, as bytes, as a streaming body or as items."""
    sizes = 0, 100, (1 << 16) - 4, 1 << 16, 1 << 20
    inputs = []
    for name in "ab"[: random.randrange(3)]:
        size = random.choice(sizes)
        raw = memoryview(bytes(size))
        data: TensorData = random.choice(
            (
                RawData(random.choice((raw, raw.cast("i")))),
                StreamedData(SimpleNamespace(), 0, size),
                ItemsData([b"1"]),
            )
        )
        inputs.append(Tensor(name, Datatype.INT32, (size // 4,), data))
    return (InferRequest(model=ModelRef("m"), inputs=tuple(inputs)),)


def _sent_headers(random: Random) -> Headers:
    """Return the headers of a client, often those of a template."""
    names = random.sample(("user-agent", "x-request-id", "X-Request-ID", "accept"), 2)
    texts = "a", "b", "", "x" * 128, "x" * 300, "a\tb", "\xe9"
    return _headers(random, tuple([(name, random.choice(texts)) for name in names]))


def _headers(random: Random, pairs: tuple[tuple[str, str], ...]) -> Headers:
    """Return headers, nearly always as a template makes them."""
    lowered = tuple([(name.lower(), value) for name, value in pairs])
    positions: dict[str, int] = {}
    for place, (name, _) in enumerate(lowered):
        positions.setdefault(name, place)
    return Headers(pairs, lowered, positions) if random.random() < 0.8 else Headers(pairs)


def sender_metadata(random: Random) -> tuple[Any, ...]:
    """Return the headers of a client."""
    return (_sent_headers(random),)


def _try_immediate(random: Random) -> tuple[Any, ...]:
    """Return a request, and what is left of the slots and of the memory of its listener."""
    length = random.choice((None, 0, 5, 5, 70_000))
    here = memoryview(bytes(length or 0)) if length is None or random.random() < 0.9 else None
    head = Head(
        "POST",
        random.choice(("/v2", "/v2", "/none")),
        "",
        _sent_headers(random),
        length,
        random.random() < 0.1,
        False,
        random.random() < 0.1,
        None,
        None,
    )
    known = random.choice((head.headers, _sent_headers(random), ()))
    is_reserved = random.random() < 0.1
    return head, here, random.choice((0, 4)), random.choice((0, 300_000)), known, is_reserved


def known_request(random: Random) -> tuple[Any, ...]:
    """Return one request or more in a buffer, whose head is cached or has a template, nearly always.

    Also what was read before: heads that are cached, one that leaves a template, how many heads are
    not looked up, and a part of a head.
    """
    ids = [b"x" * size for size in random.choices((1, 9, 900, 1100), k=2)]
    length = random.choice((None, 0, 3, 3))
    lines = [b"POST /v2?%b HTTP/1.1", b"Host: a", b"X-Request-Id: %b"]
    lines += [] if length is None else [b"Content-Length: %d" % length]
    lines += random.choices((b"transfer-encoding: chunked", b"Accept: *"), (0.1, 1))
    head, before = (b"\r\n".join([*lines, b"", b""]) % (each[:99], each) for each in ids)
    data = head + b"abc"[: length or 0] + random.choice((b"", b"", b"more"))
    buffer = bytearray(4096)
    buffer[: len(data)] = damaged(random, data, b"\r\n")[: len(data)].ljust(len(data), b"\r")
    nbytes = random.choice((len(data), len(data), len(data) - 1, 3, 0, 8192))
    known = RequestHead("POST", (1, 1), random.random() < 0.2, length, random.random() < 0.1)
    cached = {head: known} if len(head) <= MAX_CACHED_BYTES and random.random() < 0.5 else {}
    start = b"GET /" if random.random() < 0.1 else b""
    return bytes(buffer), nbytes, cached, before, random.choice((0, 0, 1, 7)), start


def raw_array(random: Random) -> tuple[Any, ...]:
    """Return a tensor of numbers whose bytes fit its shape, nearly always."""
    datatype = random.choice((Datatype.INT32, Datatype.FP16, Datatype.BOOL, Datatype.BYTES, None))
    raw = bytes(random.choice((0, 4, 12, 24, 25)))
    data = random.choice((RawData(memoryview(raw)), ItemsData([raw])))
    shape = random.choice(((2, 3), (3,), (), (0,), (1, -1), None))
    return (Tensor("x", datatype, shape, data),)


def response_text(random: Random) -> tuple[Any, ...]:
    """Return a response, and how its head is written."""
    fields = [
        (random.choice(("Content-Type", "X-One", "Date", "Content-Length", "bad name")), "a b")
        for _ in range(random.randrange(4))
    ]
    body = _buffers(random)
    size = sum(map(len, body))
    headers = Headers(tuple(fields))
    if random.random() < 0.5:
        headers = ExtendedHeaders(headers, *response_lines(random))
    response = HttpResponse(
        random.choice((200, 200, 503, 599)),
        headers,
        body,
        request_id=random.choice(("", "id-1", "é\r\n")),
    )
    framing = random.choice((b"", b"", b"Transfer-Encoding: chunked\r\n"))
    length, content = random.choice(((size, body), (size, ()), (-1, ())))
    version = random.choice(((1, 1), (1, 0)))
    return response, length, random.random() < 0.7, version, random.random() < 0.5, content, framing


def plain_outputs(random: Random) -> tuple[Any, ...]:
    """Return what is expected of outputs, and arrays that a model has returned."""
    int32 = Datatype.INT32.numpy_dtype
    arrays = {
        "a": np.zeros(random.choice(((2, 3), (2,))), random.choice((int32, np.float32))),
        "b": random.choice((np.zeros((2, 3), int32), [1, 2], np.zeros((2, 3), int32)[:, ::-1])),
    }
    shape = random.choice(((2, 3), (-1, 3), (-1,), None))
    expected = dict.fromkeys(("a", "b", "c"), (Datatype.INT32, int32, shape))
    return expected, arrays, random.choice((("a",), ("a", "b"), (), ("b", "c"), ("d",)))


PARTS: Final[dict[str, Part]] = {
    each.__name__: each
    for each in (
        split_holes,
        template_parser,
        request_reader,
        request_decoder,
        reply_reader,
        call_writer,
        plain_call,
        number_packer,
        integer_writer,
        message_writer,
        field_parts,
        response_writer,
        binary_writer,
        binary_part,
        plain_reader,
        message_scanner,
        described_reader,
        layout_finder,
        copy_data,
        address_of,
        take_request,
        take_response,
        new_stream,
        new_call,
        send_joined,
        answer,
        join_stream,
        join_call,
        whole_message,
        with_metadata,
        join_response,
        head_recogniser,
        request_filler,
        response_filler,
        is_printable_ascii,
        metadata_with_id,
        headers_with_id,
        extended_headers,
        field_lines,
        lines_of,
        json_length,
        on_complete_stream,
        _wire_request,
        response_lines,
        first_value,
        texts_among,
        pairs_without,
        texts_and_id,
        sender_metadata,
        read_call_block,
        read_response_head,
        decode_block,
        pairs_named,
        base64_entries,
        row_parser,
        row_writer,
        packed_numbers,
        has_regular_lists,
        try_acquire,
        release,
        call_with_deadline,
        call_with_metadata,
        is_incomplete,
        start_timeout,
        wire_bytes,
        are_declared,
        has_large_input,
        plain_outputs,
        _try_immediate,
        known_request,
        raw_array,
        response_text,
        *CLIENT_PARTS,
    )
}
"""The inputs of each function, by its name."""


def flipped(random: Random, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return *arguments* with one bit of the first bytes among them changed, if there are any."""
    if isinstance(arguments[-1], list) and arguments[-1]:
        return (*arguments[:-1], [flipped(random, each) for each in arguments[-1]])
    found = [at for at, each in enumerate(arguments) if isinstance(each, bytes | memoryview)]
    if not found:
        return arguments
    index = found[0]
    changed = bytearray(arguments[index])
    if changed:
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return (*arguments[:index], type(arguments[index])(bytes(changed)), *arguments[index + 1 :])


def use_functions(source: Mapping[str, Any], patch: pytest.MonkeyPatch) -> None:
    """Let the gateway use the functions of *source* until *patch* is undone."""
    for place in (*MODULES, *CLASSES):
        for name in PARTS.keys() & vars(place).keys():
            patch.setattr(place, name, source[name])
    # These have functions of the other build.
    write.few_integers.cache_clear()
    integers = partial(write.few_integers, "output")
    written = source["response_writer"](infer_response._model, integers)
    patch.setattr(infer_response, "_write_integers", written)
    for module, kind in ((infer_request, "input"), (infer_response, "output")):
        binary = source["binary_writer"](partial(write.binary_part, kind))
        patch.setattr(module, "_write_binary", binary)
    patch.setattr(row_values, "few_rows", source["row_writer"](few_rows.row_part))


def outcome(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> object:
    """Return the result of *function*, or its error.

    A function that it returns is called with the last of *arguments*, or with each item of it.
    """
    try:
        if name in ("number_packer", "integer_writer"):
            return function(*arguments[:-1])(arguments[-1])
        if name in _FACTORIES:
            written = function(*arguments[:-1])
            return [_result(written, *each) for each in arguments[-1]]
        if name in _CALLED_BY:
            given = arguments if name in _UNCHANGED else deepcopy(arguments)
            return _CALLED_BY[name](function, *given)
        result = function(*arguments)
        if name == "read_call_block":
            return _shown(result[0]), *result[1:]
        return _shown(result)
    except Exception as error:  # noqa: BLE001  # any error is to be the same
        return type(error), str(error)


def _result(function: Callable[..., Any], *arguments: Any) -> object:
    """Return the result of a function that a factory has made, or its error."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001  # as above
        return type(error), str(error)


def _limited(function: Callable[..., Any], limiter: WatchedLimiter, *arguments: Any) -> object:
    """Return the result of a method of a limiter, and what it has changed."""
    result = function(limiter, *arguments)
    shares = [each.used for each in arguments if isinstance(each, Share)]
    return result, limiter.used, shares, limiter.served


def _replayed(function: Callable[..., Any], pieces: list[bytes], client: bool) -> object:
    """Return what a connection makes of *pieces* with another method."""
    from tests.unit.transports.http2.test_fast_paths import replay_pieces  # noqa: PLC0415  # as above

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Http2Connection, "take_response" if client else "take_request", function)
        return replay_pieces(pieces, client=client)


def _copied(function: Callable[..., Any], *arguments: Any) -> object:
    """Return the result for the given arguments, and what is copied into new room."""
    room = bytearray(len(arguments[-1]))
    return function(*arguments[:-1], memoryview(room)), room


def _opened(function: Callable[..., Any], *arguments: Any) -> object:
    """Return the fields of a new stream."""
    return _fields(function(*arguments))


def _called(function: Callable[..., Any], *arguments: Any) -> object:
    """Return the fields of a new call, at a time that does not go on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_call, "monotonic", lambda: 7.0)
        call = function(*arguments)
    return [getattr(call, name) for name in ServerCall.__slots__]


def _sent(function: Callable[..., Any], writer: Http2StreamWriter, *arguments: Any) -> object:
    """Return the result of a method of a writer, and what it has changed."""
    result = function(writer, *arguments)
    left = writer._flood_budget.remaining, list(writer._streams)
    return result, writer._out, writer._room, left, _fields(arguments[0])


def _fields(stream: Http2Stream) -> list[object]:
    return [getattr(stream, name, None) for name in Http2Stream.__slots__]


def _answered(function: Callable[..., Any], call: ClientCall, *arguments: Any) -> object:
    """Return whether a call was answered, and what was changed."""
    result = function(call, *arguments)
    waiter: Any = call.waiter
    end = None if call._end is None else call._end.metadata
    connection: Any = call.connection
    results = None if waiter is None else waiter.results
    return result, results, end, connection.events, call.stream.owner


def _begun(  # one argument for each part of the state
    function: Callable[..., Any],
    head: Head,
    here: memoryview | None,
    slots: int,
    used: int,
    known: Headers | tuple[()],
    is_reserved: bool,
) -> object:
    """Return the request that an exchange begins with, and what it has changed."""
    limits = ServerLimits(message_bytes=60_000)
    budget = MemoryBudget(400_000)
    budget.used = used
    limiter = Limiter(4)
    limiter.used = slots

    def handler_of(path: str) -> Any:
        if path == "/none":
            raise HttpError(404, "nothing is served")
        return "a frontend", "its method"

    listener = ListenerState(limits, budget, limiter, handler_of, bool, limiter)  # type: ignore[arg-type]
    client = ClientShares(Share(), Share(), callers.Caller("127.0.0.1"))
    client.caller.client(known)
    raw = RequestHead("POST", (1, 1), False, head.length, head.is_chunked, head)
    request = BufferedRequest(raw, RequestHeadCache(limits), here)
    if is_reserved:
        request.reservation = Reservation(budget, None)
    connection: Any = SimpleNamespace(client=client)
    exchange = Exchange(listener, connection, request, None)
    result = function(exchange)
    kept = exchange._head is head, exchange._body, exchange._held, exchange._deadline
    caller = client.caller.fields is head.headers, client.caller.last
    left = budget.used, limiter.used, client.slots, client.memory
    shares = [each.used for each in left[2:] if each is not None]
    return result, kept, caller, exchange._frontend, exchange._handle, left[:2], shares


class _WatchedConnection(GrpcServerConnection):
    """A connection that notes what it is asked for, and is its own core."""

    def __init__(self, methods: Mapping[str, Any], shares: ClientShares) -> None:  # as is needed
        self._methods = methods
        self.client = shares
        self.core: Any = self
        self.events: list[object] = []

    def refuse(self, _stream: Http2Stream, code: int) -> None:
        self.events.append(("refuse", code))

    def _serve_other(self, _stream: Http2Stream, head: Any, _body: memoryview | None) -> None:
        self.events.append(("other", head.path))

    def schedule(self, _call: object, deadline: float) -> None:
        self.events.append(("schedule", deadline))


def _connected(*, is_unary: bool = True, limit: int = 1 << 20) -> _WatchedConnection:
    """Return a connection that serves one method."""
    connection = _WatchedConnection({}, ClientShares(None, None, callers.Caller("::1")))
    method: Any = SimpleNamespace(
        path=_METHOD_PATH,
        is_unary=is_unary,
        is_bidirectional=False,
        limits=ServerLimits(message_bytes=limit),
        wheel=connection,
    )
    connection._methods = {_METHOD_PATH: method}
    return connection


def _started(
    function: Callable[..., Any], head: GrpcRequestHead, view: memoryview, limit: int, unary: bool
) -> object:
    """Return what a connection has done with a call, and what has become of its stream."""
    connection, stream = _connected(is_unary=unary, limit=limit), Http2Stream(3, 9, 9, None)
    events = connection.events

    def run(_call: ServerCall, running: Any) -> None:
        events.append((running.__name__, bytes(running.cr_frame.f_locals["view"])))
        running.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_call, "monotonic", lambda: 7.0)
        patch.setattr(ServerCall, "_run", run)
        patch.setattr(ServerCall, "_start", lambda _call, _message: events.append("start"))
        patch.setattr(ServerCall, "_fail", lambda _call, error: events.append(error.message))
        patch.setattr(ServerCall, "_receiving", lambda _call: _Feeds(events))
        result = function(connection, stream, head, view, None)
    call = stream.owner
    names = ("_head", "_started_at", "_deadline", "_state", "task")
    return result, events, call and [getattr(call, name) for name in names]


class _Feeds:
    """A receiver of messages that notes what it is fed."""

    def __init__(self, events: list[object]) -> None:
        self._events = events
        self.messages: list[object] = []

    def feed(self, view: memoryview, *, end: bool) -> None:
        self._events.append(("feed", bytes(view), end))


def _asking_call(
    function: Callable[..., Any],
    before: Any,
    metadata: Any,
    message: Any,
    is_odd: bool,
    client: Client | None,
) -> object:
    """Return the request of a call, and what is known of the sender."""
    connection = _connected()
    caller = connection.client.caller
    caller.client(before)
    connection_of_call: Any = SimpleNamespace(client=connection.client) if is_odd else connection
    head = GrpcRequestHead(_METHOD_PATH, metadata, None, "identity", 200, 0)
    method: Any = connection._methods[_METHOD_PATH]
    call = ServerCall(connection_of_call, Http2Stream(3, 9, 9, None), head, method, client)
    found = function(call, memoryview(b"view"), message)
    return found, found.message, caller.fields is metadata, caller.last, found.client is caller.last


def _extended(function: Callable[..., Any], *arguments: Any) -> object:
    """Return all of the fields of headers."""
    found = function(*arguments)
    parts = found.base, found.more, found.pairs, found.lowered, found.positions
    return type(found).__name__, parts


def _direct(function: Callable[..., Any], *arguments: Any) -> object:
    """Return the result for copies of the arguments, which may cache it."""
    return function(*arguments)


def _known(  # one argument for each part of the state
    function: Callable[..., Any],
    data: bytes,
    nbytes: int,
    cached: dict[bytes, RequestHead],
    before: bytes,
    unsampled: int,
    start: bytes,
) -> object:
    """Return the fields of a request whose head needs no parser, and what has changed."""
    limits = ServerLimits()
    cache = RequestHeadCache(limits)
    for key, head in cached.items():
        cache.put(key, head)
    with suppress(HttpError):
        for _ in range(2):
            parsed, _ = HeadReader(limits, cache).feed(before, 0)
            assert parsed is not None
            if parsed.checked is None:
                whole = parsed.method, parsed.target, parsed.version, parsed.fields
                parsed.checked = read_head(*whole, limits)
                cache.note(parsed)
    heads = HeadReader(limits, cache)
    if start:
        heads.feed(start, 0)
    heads.unsampled = unsampled
    found = function(memoryview(bytearray(data)), nbytes, heads)
    if isinstance(found, BufferedRequest):
        found = [getattr(found, name) for name in found.__slots__ if name != "_head_cache"]
    return found, heads.unsampled, len(cache)


def _viewed(function: Callable[..., Any], tensor: Tensor) -> object:
    """Return the datatype, the shape and the bytes of an array."""
    found = function(tensor)
    return None if found is None else (found.dtype, found.shape, found.tobytes())


def _written_at_once(function: Callable[..., Any], *arguments: Any) -> object:
    """Return the text of a response, at a time that does not go on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: 1.5e9)
        return function(*arguments)


def _timed(function: Callable[..., Any], *arguments: Any) -> object:
    """Return the deadlines of a call, and the timeout that is started for it."""

    async def run() -> object:
        found = function(*arguments, TimerWheel(lambda: arguments[-1]))
        if found is None:
            return None
        call, timeout, deadline = found
        is_task = timeout._task is asyncio.current_task()
        step = timeout in timeout._step, timeout._step.number
        return call, call.context.origin, deadline, is_task, timeout._before, step

    return asyncio.run(run())


def _with_origins(function: Callable[..., Any], *arguments: Any) -> object:
    """Return what a factory's function returns for each of the last argument, with the origins."""
    read = function(*arguments[:-1])
    return [_with_origin(_result(read, *each)) for each in arguments[-1]]


def _decoded(function: Callable[..., Any], *arguments: Any) -> object:
    """Return the same for requests whose headers nobody has parsed."""
    for _, wire, _ in arguments[-1]:
        wire.headers._read = None, None
    return _with_origins(function, *arguments)


def _with_origin(found: Any) -> object:
    """Return a call or a reply, and what its equality leaves out; else the value itself."""
    if isinstance(found, InferResponse):
        flags = found.has_nonfinite_words, found.has_null_infinities, found.has_half_in_json
        return found, found.origin, flags
    return (found, found.context.origin) if isinstance(found, Call) else found


def _scanned(function: Callable[..., Any], *arguments: Any) -> object:
    """Return what messages have, and how many fields are left of those that are allowed."""
    *of_scanner, messages = arguments
    scanner = function(*of_scanner)
    found = []
    for message, allowed in messages:
        counter = FieldCounter(allowed)
        found.append((_result(scanner, memoryview(message), counter), counter.remaining))
    return found


def _described(function: Callable[..., Any], descriptor: Any, messages: Any) -> object:
    """Return what messages have, and how many fields are left of those that are allowed."""
    reader = function(descriptor)
    found = []
    for message, allowed in messages:
        counter = FieldCounter(allowed)
        value = _result(reader, (memoryview(message),), DEFAULT_LIMITS, counter)
        found.append((value, counter.remaining))
    return found


_CALLED_BY: Final[dict[str, Callable[..., object]]] = {
    "copy_data": _copied,
    "message_scanner": _scanned,
    "described_reader": _described,
    "request_decoder": _decoded,
    "reply_reader": _with_origins,
    "plain_call": lambda function, *arguments: _with_origin(function(*arguments)),
    "try_acquire": _limited,
    "release": _limited,
    "take_request": _replayed,
    "take_response": _replayed,
    "new_stream": _opened,
    "new_call": _called,
    "send_joined": _sent,
    "answer": _answered,
    "start_timeout": _timed,
    "_try_immediate": _begun,
    "known_request": _known,
    "raw_array": _viewed,
    "response_text": _written_at_once,
    "extended_headers": _extended,
    "lines_of": _direct,
    "on_complete_stream": _started,
    "_wire_request": _asking_call,
    **CLIENT_CALLERS,
}
"""What calls a function, and returns its result and what it has changed in a form to compare."""

_UNCHANGED: Final = frozenset(
    {
        "copy_data",
        "raw_array",
        "response_text",
        "request_decoder",
        "reply_reader",
        "plain_call",
        "on_complete_stream",
        "_wire_request",
        *CLIENT_CALLERS,
    }
)
"""Those of them whose arguments stay as they are."""


def _shown(result: Any) -> object:
    """Return a result in a form in which equal errors are equal."""
    return (type(result), str(result)) if isinstance(result, Exception) else result


def _buffers(random: Random) -> list[bytes | bytearray | memoryview]:
    """Return some buffers of different types."""
    buffers: list[bytes | bytearray | memoryview] = []
    for _ in range(random.randrange(4)):
        buffer = random.randbytes(random.randrange(300))
        buffers.append(random.choice((buffer, bytearray(buffer), memoryview(buffer)[1:])))
    return buffers


def _request(random: Random) -> tuple[bytes, bytes]:
    """Return the JSON of a request, and the bytes after it."""
    inputs, tail = [], b""
    for index in range(random.choice((0, 1, 2, 3, 40))):
        datatype, shape = (
            random.choice((Datatype.INT32, Datatype.FP64)),
            random.choice(([2], [1, 3])),
        )
        member: dict[str, Any] = {"name": f"X{index}", "shape": shape, "datatype": datatype.value}
        count = math.prod(shape)
        if random.random() < 0.3:
            tail += bytes(count * datatype.size_bytes)
            member["parameters"] = {"binary_data_size": count * datatype.size_bytes}
        else:
            member["data"] = [1] * count if len(shape) == 1 else [[1] * count]
        inputs.append(member)
    document: dict[str, Any] = {"inputs": inputs}
    if random.random() < 0.5:
        document["id"] = random.choice(("a-1", "", "\u00e9"))
    return json.dumps(document, separators=(",", random.choice((":", ": ")))).encode(), tail


_TEXTS: Final = (
    "",
    "a",
    "a-1",
    "x" * 127,
    "x" * 128,
    "\u00e9",
    "\ud800",
    'a"',
    "a\\",
    "a\n",
    "\x7f",
)
_FACTORIES: Final = (
    "message_writer",
    "field_parts",
    "response_writer",
    "binary_writer",
    "template_parser",
    "request_reader",
    "call_writer",
    "layout_finder",
    "plain_reader",
    "head_recogniser",
    "request_filler",
    "response_filler",
    "row_parser",
    "row_writer",
)
_SHAPES: Final = ((), (0,), (1,), (1, 3), (2, 64), (1, 600), (5000,))


def _messages(random: Random, *, with_outputs: bool) -> list[tuple[Any, ...]]:
    """Return the arguments of a writer for some messages, which share their descriptions."""
    models = [ModelRef(random.choice(_TEXTS), random.choice(("", "1"))) for _ in range(2)]
    ids = [random.choice(_TEXTS) for _ in range(2)]
    lists = [_tensors(random) for _ in range(3)]
    lists += [[_with_other_data(random, each) for each in lists[0]]]
    messages: list[tuple[Any, ...]] = []
    for _ in range(random.randrange(1, 6)):
        tensors = tuple(random.choice(lists))
        messages.append((random.choice(models), random.choice(ids), tensors))
        if with_outputs and random.random() < 0.5:
            messages[-1] += (tuple([_output(random) for _ in range(random.randrange(3))]),)
    return messages


def _tensors(random: Random) -> list[Tensor]:
    """Return tensors; nearly all have raw data of the right size."""
    found = []
    for _ in range(random.choice((0, 1, 2, 2, 3, 17))):
        datatype: Datatype | None = random.choice(list(Datatype))
        shape: tuple[int, ...] | None = random.choice(_SHAPES)
        datatype, shape = random.choices(
            ((datatype, shape), (Datatype.INT32, (1, 3)), (None, shape), (datatype, None)),
            (4, 4, 0.1, 0.1),
        )[0]
        parameters = random.choices(({}, {"k": 1}), (20, 1))[0]
        name = random.choice(_TEXTS)
        tensor = Tensor(name, datatype, shape, RawData(memoryview(b"")), parameters)
        found.append(_with_other_data(random, tensor))
    return found


def _with_other_data(random: Random, tensor: Tensor) -> Tensor:
    datatype, shape = tensor.datatype, tensor.shape
    size = math.prod(shape or ()) * (1 if datatype is None else datatype.size_bytes)
    raw = random.choice((bytes(size), random.randbytes(size), b"\xff" * size))
    data: TensorData = RawData(memoryview(raw))
    if random.random() < 0.2 and datatype not in (None, Datatype.BYTES):
        array = np.frombuffer(raw, datatype.numpy_dtype).reshape(shape or (-1,))
        data = ArrayData(random.choice((array, array.T, array.astype(array.dtype.newbyteorder()))))
    if random.random() < 0.02:
        other = (ItemsData([]), SharedMemoryData("r", 0, 4))
        data = random.choice((*other, RawData(memoryview(raw + b"x"))))
    return Tensor(tensor.name, datatype, shape, data, tensor.parameters)


def _output(random: Random) -> RequestedOutput:
    """Return a requested output, which nearly always has only a name."""
    name = random.choice(_TEXTS)
    shared = SharedMemoryData("r", 0, 4)
    return random.choices(
        (
            RequestedOutput(name),
            RequestedOutput(name, 2),
            RequestedOutput(name, 0, {"k": 1}),
            RequestedOutput(name, 0, {}, shared),
        ),
        (20, 1, 1, 1),
    )[0]


def _list(random: Random, code: str, count: int) -> bytes:
    """Return a list of numbers that fit *code*, nearly always."""
    blank = random.choice((b"", b" "))
    return b"[" + (b"," + blank).join(_number(random, code) for _ in range(count)) + blank + b"]"


def _number(random: Random, code: str) -> bytes:
    if code in "fde" and random.random() < 0.8:
        value = random.choice(
            (random.uniform(-10, 10), random.gauss(0, 1e30), random.random() * 1e-9)
        )
        digits = random.randrange(1, 19)
        return (
            b"%b"
            % random.choice((f"{value:.{digits}g}", f"{value:.{digits}f}", repr(value))).encode()
        )
    bits = 8 * struct.calcsize(code)
    least, most = (0, 1 << bits) if code.isupper() else (-(1 << bits - 1), 1 << bits - 1)
    edge = random.choice((0, 1, 9, 10, least, most - 1, random.randrange(least, most)))
    return b"%d" % (edge + (random.random() < 0.02))


def damaged(random: Random, text: bytes, alphabet: bytes) -> bytes:
    """Return *text*, or one time in three a changed or truncated *text*."""
    at = random.randrange(len(text) + 1)
    match random.randrange(12):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + bytes([random.choice(alphabet)]) + text[at:]
        case 2:
            return text[:at] + text[at + 1 :]
        case 3:
            return text[:at] + bytes([random.choice(alphabet)]) + text[at + 1 :]
        case _:
            return text
