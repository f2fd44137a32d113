"""What a server makes of prefaces, of the form of frames, and of the states of streams."""

from __future__ import annotations

from tests.conformance.h2_case import (
    ANSWERED,
    BLOCK,
    IGNORED,
    Case,
    call,
    reset,
    setting,
    window,
)
from tests.conformance.h2_kit import (
    CALL,
    COMPRESSION_ERROR,
    FRAME_SIZE_ERROR,
    MESSAGE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    WHOLE,
    connection,
    stream,
)
from tests.hostile.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    SETTINGS,
    body,
    frame,
    literal,
    message,
)

_LAST = END_HEADERS | END_STREAM

PREFACES = [
    Case(
        "3.4",
        "preface_of_another_protocol",
        b"",
        connection(PROTOCOL_ERROR),
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    ),
    Case("3.4", "preface_wrong_at_its_end", b"", connection(PROTOCOL_ERROR), PREFACE[:-1] + b"x"),
    Case("3.4", "no_settings_first_ping", frame(PING, payload=bytes(8)), connection(1), PREFACE),
    Case("3.4", "no_settings_first_headers", WHOLE, connection(PROTOCOL_ERROR), PREFACE),
    Case("3.4", "settings_ack_is_no_preface", frame(SETTINGS, ACK), connection(1), PREFACE),
    Case("3.4", "call_right_behind_the_preface", WHOLE, ANSWERED),
]

FRAMES = [
    Case("4.1", "unknown_frame", frame(0xEE, 0xFF, 0, b"abc") + WHOLE, ANSWERED),
    Case("4.1", "unknown_frame_on_a_stream", CALL + frame(0xEE, 0, 1, b"a") + MESSAGE, ANSWERED),
    Case("4.1", "unknown_frame_on_an_idle_stream", frame(0xEE, 0, 9, b"a"), IGNORED),
    Case("4.1", "undefined_flags", frame(PING, 0xFE, 0, bytes(8)), IGNORED),
    Case("4.1", "reserved_bit", frame(PING, 0, 1 << 31, bytes(8)), IGNORED),
    Case(
        "4.1",
        "reserved_bit_of_a_stream",
        frame(HEADERS, 4, 1 << 31 | 1, BLOCK) + MESSAGE,
        ANSWERED,
    ),
    Case("4.2", "data_of_16_kib", CALL + body(message(bytes(16_379))), ANSWERED),
    Case(
        "4.2",
        "data_over_the_limit",
        CALL + b"\x10\x00\x01" + bytes([DATA, 0, 0, 0, 0, 1]),
        connection(FRAME_SIZE_ERROR),
    ),
    Case(
        "4.2",
        "headers_over_the_limit",
        b"\xff\xff\xff" + bytes([HEADERS, 4, 0, 0, 0, 1]),
        connection(FRAME_SIZE_ERROR),
    ),
    Case(
        "4.2",
        "settings_over_the_limit",
        b"\xff\xff\xfc" + bytes([SETTINGS, 0, 0, 0, 0, 0]),
        connection(FRAME_SIZE_ERROR),
    ),
    Case(
        "4.2",
        "ping_over_the_limit",
        b"\xff\xff\xff" + bytes([PING, 0, 0, 0, 0, 0]),
        connection(FRAME_SIZE_ERROR),
    ),
    Case(
        "4.3",
        "block_that_is_no_hpack",
        frame(HEADERS, END_HEADERS, 1, b"\x80"),
        connection(COMPRESSION_ERROR),
    ),
    Case(
        "4.3",
        "other_frame_in_a_block",
        frame(HEADERS, 0, 1, BLOCK[:9]) + frame(PING, payload=bytes(8)),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "4.3",
        "headers_in_a_block",
        frame(HEADERS, 0, 1, BLOCK[:9]) + frame(HEADERS, 4, 3, BLOCK),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "4.3",
        "unknown_frame_in_a_block",
        frame(HEADERS, 0, 1, BLOCK[:9]) + frame(0xEE),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "4.3",
        "block_in_one_byte_frames",
        frame(HEADERS, 0, 1, BLOCK[:-20])
        + b"".join(
            frame(CONTINUATION, 4 if n == 19 else 0, 1, BLOCK[-20:][n : n + 1]) for n in range(20)
        )
        + MESSAGE,
        ANSWERED,
    ),
]

STATES = [
    Case("5.1", "idle_data", frame(DATA, 0, 1, b"x"), connection(PROTOCOL_ERROR)),
    Case("5.1", "idle_reset", reset(1), connection(PROTOCOL_ERROR)),
    Case("5.1", "idle_window_update", window(100, 1), connection(PROTOCOL_ERROR)),
    Case("5.1", "idle_continuation", frame(CONTINUATION, 4, 1, BLOCK), connection(PROTOCOL_ERROR)),
    Case("5.1", "idle_priority", frame(PRIORITY, 0, 1, bytes(5)) + WHOLE, ANSWERED),
    Case("5.1", "half_closed_data", WHOLE + frame(DATA, 0, 1, b"x"), connection(STREAM_CLOSED)),
    Case("5.1", "half_closed_headers", WHOLE + CALL, connection(STREAM_CLOSED)),
    Case(
        "5.1",
        "half_closed_continuation",
        WHOLE + frame(CONTINUATION, 4, 1, b""),
        connection(PROTOCOL_ERROR),
    ),
    Case("5.1", "half_closed_window_update", WHOLE + window(100, 1), ANSWERED),
    Case("5.1", "half_closed_priority", WHOLE + frame(PRIORITY, 0, 1, bytes(5)), ANSWERED),
    Case("5.1", "half_closed_reset", WHOLE + reset(1), IGNORED),
    Case("5.1", "reset_then_data", CALL + reset(1) + frame(DATA, 0, 1, b"x"), IGNORED),
    Case("5.1", "reset_then_window_update", CALL + reset(1) + window(100, 1), IGNORED),
    Case("5.1", "reset_then_reset", CALL + reset(1) + reset(1), IGNORED),
    Case("5.1", "reset_then_priority", CALL + reset(1) + frame(PRIORITY, 0, 1, bytes(5)), IGNORED),
    Case(
        "5.1",
        "reset_then_trailers",
        CALL + reset(1) + frame(HEADERS, _LAST, 1, literal(b"x", b"y")),
        IGNORED,
    ),
    Case("5.1", "reset_then_another_call", CALL + reset(1) + CALL, connection(PROTOCOL_ERROR)),
    Case("5.1.1", "even_stream", frame(HEADERS, _LAST, 2, BLOCK), connection(PROTOCOL_ERROR)),
    Case(
        "5.1.1",
        "stream_number_goes_back",
        call(at=5, end=True) + call(at=3, end=True),
        connection(PROTOCOL_ERROR),
    ),
    Case("5.1.1", "stream_numbers_are_left_out", call(at=9) + body(message(b"x"), 9), ANSWERED),
    Case(
        "5.1.1",
        "data_on_a_number_left_out",
        call(at=9) + body(message(b"x"), 9) + frame(DATA, 0, 7, b"x"),
        ANSWERED,
    ),
    Case(
        "5.1.2",
        "more_streams_than_allowed",
        b"".join(call(at=2 * n + 1) for n in range(3)) + reset(1) + reset(3),
        stream(REFUSED_STREAM, 5),
    ),
    Case(
        "5.3",
        "headers_that_depend_on_themselves",
        frame(HEADERS, 0x24, 1, b"\0\0\0\1\xff" + BLOCK) + MESSAGE,
        ANSWERED,
    ),
    Case(
        "5.3",
        "priority_that_depends_on_itself",
        frame(PRIORITY, 0, 1, b"\0\0\0\1\xff") + WHOLE,
        ANSWERED,
    ),
    Case("5.4.2", "reset_is_not_answered_by_reset", CALL + reset(1, 2), IGNORED),
    Case("5.5", "unknown_setting", setting(0xFF, 1) + WHOLE, ANSWERED),
]
