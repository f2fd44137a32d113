"""Hostile HTTP/2 frames: a status, a reset or the end, never silence, while others are served."""

from __future__ import annotations

import gzip
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from tests.hostile.frames import (
    ACK,
    BEGIN,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PUSH,
    RST,
    SETTINGS,
    WINDOW,
    block,
    body,
    converse,
    frame,
    literal,
    message,
    number,
    opening,
)
from tests.hostile.judge import Patient, good_call
from tests.hostile.wire import PATIENCE_S
from tests.scheduling import delayed_s

pytestmark = pytest.mark.hostile

GOOD = body(message(good_call()))
_MIB = 1 << 20


@pytest.fixture(params=["main.grpc", "native.grpc"], ids=["main", "native"])
def address(patient: Patient, request: pytest.FixtureRequest) -> tuple[str, int]:
    """Return the address of each gRPC implementation."""
    return patient.gateway.addresses[request.param]


def _setting(key: int, value: int) -> bytes:
    return frame(SETTINGS, payload=key.to_bytes(2, "big") + value.to_bytes(4, "big"))


CASES: dict[str, bytes] = {
    # Messages of gRPC.
    "no_message": opening(flags=END_HEADERS | END_STREAM),
    "empty_data": opening() + body(b""),
    "prefix_cut": opening() + body(b"\0\0\0"),
    "message_cut": opening() + body(message(b"abc", length=100)),
    "message_too_long": opening() + body(message(good_call(), length=3)),
    "length_4_gib": opening() + body(message(b"abc", length=0xFFFFFFFF)),
    "length_above_limit": opening() + body(message(b"abc", length=4 * _MIB + 1)),
    "flag_2": opening() + body(message(good_call(), flag=2)),
    "flag_255": opening() + body(message(good_call(), flag=255)),
    "flag_without_coding": opening() + body(message(gzip.compress(good_call()), flag=1)),
    "coding_unknown": opening(grpc_encoding=b"foo") + body(message(b"abc", flag=1)),
    "coding_garbage": opening(grpc_encoding=b"gzip") + body(message(b"abc", flag=1)),
    "coding_cut": opening(grpc_encoding=b"gzip")
    + body(message(gzip.compress(good_call())[:-9], flag=1)),
    "coding_bomb": opening(grpc_encoding=b"gzip")
    + body(message(gzip.compress(bytes(60 * _MIB)), flag=1)),
    "deflate_bomb": opening(grpc_encoding=b"deflate")
    + body(message(b"\x78\x9c" + b"\xff" * 99, flag=1)),
    "json_body": opening(content_type=b"application/grpc+json") + body(message(b"{}")),
    # Header blocks.
    "content_type_text": opening(content_type=b"text/plain") + GOOD,
    "content_type_none": opening(content_type=b"") + GOOD,
    "method_get": opening(method=b"GET") + GOOD,
    "method_odd": opening(method=b"\xff") + GOOD,
    "no_path": opening(path=b"") + GOOD,
    "path_not_utf8": frame(HEADERS, END_HEADERS, 1, block(b"/\xff\xfe/x")) + GOOD,
    "path_nul": frame(HEADERS, END_HEADERS, 1, block(b"/a\0b/x")) + GOOD,
    "path_newline": frame(HEADERS, END_HEADERS, 1, block(b"/a\r\nb: c/x")) + GOOD,
    "path_no_slash": frame(HEADERS, END_HEADERS, 1, block(b"x")) + GOOD,
    "path_long": frame(HEADERS, END_HEADERS, 1, block(b"/" + b"x" * 7000)) + GOOD,
    "no_scheme": opening(scheme=b"") + GOOD,
    "no_authority": opening(authority=b"") + GOOD,
    "two_paths": opening(1, literal(b":path", b"/other/x")) + GOOD,
    "pseudo_last": opening(1, literal(b"x", b"y"), literal(b":status", b"200")) + GOOD,
    "upper_case_name": opening(1, literal(b"X-Upper", b"a")) + GOOD,
    "empty_name": opening(1, literal(b"", b"a")) + GOOD,
    "connection_field": opening(1, literal(b"connection", b"close")) + GOOD,
    "te_chunked": opening(1, literal(b"transfer-encoding", b"chunked")) + GOOD,
    "content_length_lies": opening(1, literal(b"content-length", b"3")) + GOOD,
    "value_nul": opening(1, literal(b"x-a", b"a\0b")) + GOOD,
    "value_newline": opening(1, literal(b"x-a", b"a\r\nInjected: b")) + GOOD,
    "value_not_ascii": opening(1, literal(b"x-a", b"\xff\xfe")) + GOOD,
    "name_not_ascii": opening(1, literal(b"x-\xff", b"a")) + GOOD,
    "bin_not_base64": opening(1, literal(b"x-bin", b"!!!")) + GOOD,
    "request_id_not_ascii": opening(1, literal(b"x-request-id", b"\xff\n\x1b[2J")) + GOOD,
    "timeout_words": opening(grpc_timeout=b"soon") + GOOD,
    "timeout_minus": opening(grpc_timeout=b"-1S") + GOOD,
    "timeout_zero": opening(grpc_timeout=b"0n") + GOOD,
    "timeout_huge": opening(grpc_timeout=b"99999999999999H") + GOOD,
    "timeout_unit": opening(grpc_timeout=b"1x") + GOOD,
    "timeout_float": opening(grpc_timeout=b"1.5S") + GOOD,
    "metadata_9_kib": opening(1, literal(b"x-a", b"a" * 9000)) + GOOD,
    "metadata_many": opening(1, *[literal(b"x-%d" % n, b"") for n in range(600)]) + GOOD,
    "hpack_index_0": frame(HEADERS, END_HEADERS, 1, b"\x80") + GOOD,
    "hpack_index_4000": frame(HEADERS, END_HEADERS, 1, block() + number(4000, 7, 0x80)) + GOOD,
    "hpack_integer_endless": frame(HEADERS, END_HEADERS, 1, b"\xff" * 60) + GOOD,
    "hpack_length_lies": frame(HEADERS, END_HEADERS, 1, block() + b"\0\x7f\xff\xffabc") + GOOD,
    "hpack_huffman_bad": frame(HEADERS, END_HEADERS, 1, block() + b"\0\x84\xff\xff\xff\xff") + GOOD,
    "hpack_table_huge": frame(HEADERS, END_HEADERS, 1, number(2**30, 5, 0x20) + block()) + GOOD,
    "hpack_table_late": frame(HEADERS, END_HEADERS, 1, block() + number(0, 5, 0x20)) + GOOD,
    "hpack_bomb": frame(
        HEADERS,
        END_HEADERS,
        1,
        block() + literal(b"x-a", b"a" * 3800, keep=True) + b"\xbe" * 12_000,
    )
    + GOOD,
    # Frames.
    "stream_0_headers": frame(HEADERS, END_HEADERS, 0, block()) + GOOD,
    "stream_even": frame(HEADERS, END_HEADERS, 2, block()) + GOOD,
    "stream_backwards": opening(5) + opening(3),
    "stream_twice": opening() + opening() + GOOD,
    "data_without_stream": GOOD,
    "data_on_0": frame(DATA, 0, 0, b"abc"),
    "data_after_end": opening() + GOOD + GOOD,
    "trailers": opening()
    + body(message(good_call()), flags=0)
    + frame(HEADERS, 5, 1, literal(b"x", b"y")),
    "trailers_no_end": opening() + frame(HEADERS, END_HEADERS, 1, literal(b"x", b"y")) + GOOD,
    "continuation_alone": frame(CONTINUATION, END_HEADERS, 1, block()),
    "continuation_other": frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, END_HEADERS, 3),
    "continuation_broken": frame(HEADERS, 0, 1, block()) + frame(PING, payload=bytes(8)),
    "continuation_5000": frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1) * 5000,
    "continuation_fat": frame(HEADERS, 0, 1, block())
    + frame(CONTINUATION, 0, 1, literal(b"x", b"y" * 8000) * 2) * 300,
    "padding_too_long": frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + block()[:50]),
    "padding_only": opening() + frame(DATA, PADDED, 1, b"\xff" + bytes(10)),
    "priority_of_itself": frame(
        HEADERS, END_HEADERS | PRIORITISED, 1, (1).to_bytes(4, "big") + b"\1" + block()
    )
    + GOOD,
    "priority_short": frame(PRIORITY, 0, 1, b"abc"),
    "priority_flood": frame(PRIORITY, 0, 1, bytes(5)) * 20_000,
    "push_promise": frame(PUSH, END_HEADERS, 1, bytes(4) + block()),
    "frame_too_large": frame(DATA, 0, 1, bytes(1 << 20)),
    "frame_16_mib_cut": b"\xff\xff\xff" + bytes([DATA, 0]) + bytes(4),
    "frame_unknown": frame(0xEE, 0xFF, 1, b"abc") + opening() + GOOD,
    "frame_unknown_flood": frame(0xEE, 0xFF, 1, b"") * 20_000,
    "settings_odd_length": frame(SETTINGS, payload=b"abc"),
    "settings_ack_full": frame(SETTINGS, ACK, 0, bytes(6)),
    "settings_on_stream": frame(SETTINGS, 0, 1),
    "settings_window_huge": _setting(4, 2**31),
    "settings_frame_small": _setting(5, 1),
    "settings_push_2": _setting(2, 2),
    "settings_table_huge": _setting(1, 2**32 - 1) + opening() + GOOD,
    "settings_flood": frame(SETTINGS) * 20_000,
    "settings_window_0": _setting(4, 0) + opening() + GOOD,
    "ping_short": frame(PING, payload=b"abc"),
    "ping_flood": frame(PING, payload=bytes(8)) * 20_000,
    "ping_ack_flood": frame(PING, ACK, payload=bytes(8)) * 20_000,
    "window_0": frame(WINDOW, payload=bytes(4)),
    "window_overflow": frame(WINDOW, payload=b"\x7f\xff\xff\xff") * 3,
    "window_short": frame(WINDOW, payload=b"a"),
    "window_flood": frame(WINDOW, payload=bytes([0, 0, 0, 1])) * 20_000,
    "rst_idle": frame(RST, 0, 9, bytes(4)),
    "rst_on_0": frame(RST, 0, 0, bytes(4)),
    "rst_short": opening() + frame(RST, 0, 1, b"a"),
    "goaway_first": frame(GOAWAY, payload=bytes(8)) + opening() + GOOD,
    "goaway_short": frame(GOAWAY, payload=b"a"),
    "empty_data_flood": opening() + frame(DATA, 0, 1) * 20_000,
    "empty_headers_flood": frame(HEADERS, END_HEADERS, 1) * 2000,
    "rapid_reset": b"".join(
        opening(2 * n + 1) + frame(RST, 0, 2 * n + 1, b"\0\0\0\x08") for n in range(1000)
    ),
    "rapid_reset_with_data": b"".join(
        opening(2 * n + 1)
        + body(message(good_call()), 2 * n + 1)
        + frame(RST, 0, 2 * n + 1, b"\0\0\0\x08")
        for n in range(1000)
    ),
    "streams_1000": b"".join(opening(2 * n + 1) for n in range(1000)),
}


@pytest.mark.parametrize("name", CASES)
def test_invalid_frames_get_a_status_or_an_end(address: tuple[str, int], name: str) -> None:
    """Within seconds there is a status, a reset, the end, or a pong for valid frames."""
    ending, _ = converse(address, CASES[name])
    assert ending in ("status", "reset", "goaway", "closed", "pong")


STRANGERS: dict[str, bytes] = {
    "http_1": b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "http_1_post": b"POST /inference.GRPCInferenceService/ModelInfer HTTP/1.1\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "nul": bytes(1000),
    "ones": b"\xff" * 1000,
    "preface_wrong": PREFACE[:-2] + b"xx" + bytes(100),
    "no_settings": PREFACE + frame(PING, payload=bytes(8)),
    "settings_huge": PREFACE + b"\xff\xff\xff\4\0\0\0\0\0" + bytes(30_000),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_other_protocols_are_disconnected(address: tuple[str, int], name: str) -> None:
    """A connection without HTTP/2 is closed."""
    ending, _ = converse(address, b"", begin=STRANGERS[name])
    assert ending in ("goaway", "closed", "reset")


SILENT: dict[str, bytes] = {
    "nothing": b"",
    "half_a_preface": PREFACE[:10],
    "half_a_frame": BEGIN + frame(HEADERS, END_HEADERS, 1, block())[:20],
    "half_a_block": BEGIN + frame(HEADERS, 0, 1, block()),
    "half_a_message": BEGIN + opening() + body(message(b"abc", length=100), flags=0),
}


def test_incomplete_connections_delay_no_other_call(
    patient: Patient, address: tuple[str, int]
) -> None:
    """Connections that stay incomplete do not delay other calls."""
    before = patient.gateway.descriptors()
    with ExitStack() as stack:
        for data in list(SILENT.values()) * 6:
            sock = stack.enter_context(socket.create_connection(address, PATIENCE_S))
            sock.sendall(data)
        pid = patient.gateway.process.pid
        delayed, started_s = delayed_s(pid), time.monotonic()
        for _ in range(20):
            assert patient.infers()
        took_s = time.monotonic() - started_s
        assert took_s - max(0.0, delayed_s(pid) - delayed) < 2
    assert before >= patient.gateway.descriptors() - 2 * len(SILENT) * 6


def test_incomplete_message_times_out(address: tuple[str, int]) -> None:
    """A message that stays incomplete gets a status after `body_timeout`."""
    data = opening() + body(message(b"abc", length=100), flags=0)
    with socket.create_connection(address, PATIENCE_S) as sock:
        sock.sendall(BEGIN + data)
        received = b""
        with suppress(TimeoutError):
            while b"grpc-status" not in received:
                piece = sock.recv(65536)
                assert piece
                received += piece
    assert b"grpc-status" in received


def test_closed_windows_block_no_other_call(patient: Patient, address: tuple[str, int]) -> None:
    """A client with a closed window blocks its own call only."""
    closed = _setting(4, 0)
    with ExitStack() as stack:
        for _ in range(8):
            sock = stack.enter_context(socket.create_connection(address, PATIENCE_S))
            sock.sendall(BEGIN + closed + opening() + GOOD)
        for _ in range(10):
            assert patient.infers()
