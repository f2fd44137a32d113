"""What a server makes of each kind of frame: where it may stand, how long it may be, what it may say."""

from __future__ import annotations

from tests.conformance.h2_case import (
    ANSWERED,
    BLOCK,
    IGNORED,
    Case,
    reset,
    setting,
    window,
)
from tests.conformance.h2_kit import (
    CALL,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    MESSAGE,
    PROTOCOL_ERROR,
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
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITISED,
    PRIORITY,
    PUSH,
    RST,
    SETTINGS,
    WINDOW,
    body,
    frame,
    message,
)

_MOST = (1 << 31) - 1

KINDS = [
    Case("6.1", "data_on_stream_0", frame(DATA, 0, 0, b"x"), connection(PROTOCOL_ERROR)),
    Case(
        "6.1",
        "padded_data",
        CALL + frame(DATA, PADDED | END_STREAM, 1, b"\x07" + message(b"x") + bytes(7)),
        ANSWERED,
    ),
    Case(
        "6.1",
        "data_padded_by_nothing",
        CALL + frame(DATA, PADDED | END_STREAM, 1, b"\0" + message(b"x")),
        ANSWERED,
    ),
    Case(
        "6.1",
        "padding_as_long_as_the_frame",
        CALL + frame(DATA, PADDED, 1, b"\x06" + message(b"")),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "6.1",
        "padding_longer_than_the_frame",
        CALL + frame(DATA, PADDED, 1, b"\xff" + message(b"")),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "6.1",
        "padding_of_an_empty_frame",
        CALL + frame(DATA, PADDED, 1),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "6.1",
        "data_of_nothing_but_padding",
        CALL + frame(DATA, PADDED, 1, b"\x04" + bytes(4)) + MESSAGE,
        ANSWERED,
    ),
    Case(
        "6.1",
        "end_on_empty_data",
        CALL + body(message(b"x"), flags=0) + frame(DATA, END_STREAM, 1),
        ANSWERED,
    ),
    Case(
        "6.2",
        "headers_on_stream_0",
        frame(HEADERS, END_HEADERS, 0, BLOCK),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "6.2",
        "padded_headers",
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05" + BLOCK + bytes(5)) + MESSAGE,
        ANSWERED,
    ),
    Case(
        "6.2",
        "headers_padded_too_far",
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + BLOCK[:99]),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "6.2",
        "headers_with_padding_and_priority",
        frame(HEADERS, END_HEADERS | PADDED | PRIORITISED, 1, b"\x02" + bytes(5) + BLOCK + bytes(2))
        + MESSAGE,
        ANSWERED,
    ),
    Case(
        "6.2",
        "headers_without_their_priority",
        frame(HEADERS, END_HEADERS | PRIORITISED, 1, b"abc"),
        connection(FRAME_SIZE_ERROR),
    ),
    Case(
        "6.3", "priority_on_stream_0", frame(PRIORITY, 0, 0, bytes(5)), connection(PROTOCOL_ERROR)
    ),
    Case(
        "6.3",
        "priority_too_short",
        CALL + frame(PRIORITY, 0, 1, bytes(4)),
        stream(FRAME_SIZE_ERROR),
    ),
    Case(
        "6.3", "priority_too_long", CALL + frame(PRIORITY, 0, 1, bytes(6)), stream(FRAME_SIZE_ERROR)
    ),
    Case(
        "6.3",
        "priority_too_short_on_an_idle_stream",
        frame(PRIORITY, 0, 9, bytes(4)),
        connection(FRAME_SIZE_ERROR),
    ),
    Case("6.4", "reset_on_stream_0", reset(0), connection(PROTOCOL_ERROR)),
    Case("6.4", "reset_too_short", CALL + frame(RST, 0, 1, b"abc"), connection(FRAME_SIZE_ERROR)),
    Case("6.4", "reset_too_long", CALL + frame(RST, 0, 1, bytes(5)), connection(FRAME_SIZE_ERROR)),
    Case("6.5", "settings_on_a_stream", frame(SETTINGS, 0, 1), connection(PROTOCOL_ERROR)),
    Case(
        "6.5",
        "settings_of_odd_length",
        frame(SETTINGS, payload=bytes(5)),
        connection(FRAME_SIZE_ERROR),
    ),
    Case(
        "6.5",
        "settings_ack_with_a_payload",
        frame(SETTINGS, ACK, 0, bytes(6)),
        connection(FRAME_SIZE_ERROR),
    ),
    Case("6.5", "settings_ack_unasked", frame(SETTINGS, ACK) * 3, IGNORED),
    Case("6.5.2", "push_neither_0_nor_1", setting(2, 2), connection(PROTOCOL_ERROR)),
    Case("6.5.2", "push_allowed_by_a_client", setting(2, 1) + WHOLE, ANSWERED),
    Case("6.5.2", "window_too_large", setting(4, 1 << 31), connection(FLOW_CONTROL_ERROR)),
    Case("6.5.2", "frame_size_too_small", setting(5, 16_383), connection(PROTOCOL_ERROR)),
    Case("6.5.2", "frame_size_too_large", setting(5, 1 << 24), connection(PROTOCOL_ERROR)),
    Case(
        "6.5.2",
        "largest_values",
        setting(4, _MOST) + setting(5, (1 << 24) - 1) + setting(1, 1 << 20) + WHOLE,
        ANSWERED,
    ),
    Case("6.5.3", "one_setting_twice", setting(4, 0) + setting(4, 65_535) + WHOLE, ANSWERED),
    Case(
        "6.6",
        "push_promise",
        CALL + frame(PUSH, END_HEADERS, 1, b"\0\0\0\2" + BLOCK),
        connection(PROTOCOL_ERROR),
    ),
    Case("6.7", "ping_on_a_stream", frame(PING, 0, 1, bytes(8)), connection(PROTOCOL_ERROR)),
    Case("6.7", "ping_too_short", frame(PING, payload=bytes(7)), connection(FRAME_SIZE_ERROR)),
    Case("6.7", "ping_too_long", frame(PING, payload=bytes(9)), connection(FRAME_SIZE_ERROR)),
    Case("6.7", "ping_ack_unasked", frame(PING, ACK, payload=bytes(8)), IGNORED),
    Case("6.8", "goaway_on_a_stream", frame(GOAWAY, 0, 1, bytes(8)), connection(PROTOCOL_ERROR)),
    Case("6.8", "goaway_too_short", frame(GOAWAY, payload=bytes(7)), connection(FRAME_SIZE_ERROR)),
    Case("6.8", "goaway_in_flight", CALL + frame(GOAWAY, payload=bytes(8)) + MESSAGE, ANSWERED),
    Case(
        "6.8",
        "goaway_with_data",
        CALL + frame(GOAWAY, payload=bytes(8) + b"bye") + MESSAGE,
        ANSWERED,
    ),
    Case("6.9", "update_by_nothing", window(0), connection(PROTOCOL_ERROR)),
    Case("6.9", "update_by_nothing_on_a_stream", CALL + window(0, 1), stream(PROTOCOL_ERROR)),
    Case("6.9", "update_too_short", frame(WINDOW, payload=bytes(3)), connection(FRAME_SIZE_ERROR)),
    Case("6.9", "update_too_long", frame(WINDOW, payload=bytes(5)), connection(FRAME_SIZE_ERROR)),
    Case("6.9", "update_with_the_reserved_bit", window(1 << 31 | 1) + WHOLE, ANSWERED),
    Case("6.9.1", "window_overflows", window(_MOST), connection(FLOW_CONTROL_ERROR)),
    Case(
        "6.9.1",
        "window_overflows_in_steps",
        window(_MOST - 65_535) + window(1),
        connection(FLOW_CONTROL_ERROR),
    ),
    Case(
        "6.9.1", "window_of_a_stream_overflows", CALL + window(_MOST, 1), stream(FLOW_CONTROL_ERROR)
    ),
    Case(
        "6.9.1",
        "largest_window",
        window(_MOST - 65_535) + CALL + window(_MOST - 65_535, 1) + MESSAGE,
        ANSWERED,
    ),
    Case(
        "6.9.1",
        "more_than_the_window",
        CALL + frame(DATA, 0, 1, message(bytes(16_379))) + frame(DATA, 0, 1, bytes(16_384)) * 4,
        connection(FLOW_CONTROL_ERROR),
    ),
    Case(
        "6.9.2",
        "settings_overflow_a_window",
        CALL + window(_MOST - 65_535, 1) + setting(4, 65_536),
        connection(FLOW_CONTROL_ERROR),
    ),
    Case(
        "6.10", "continuation_alone", frame(CONTINUATION, 4, 1, BLOCK), connection(PROTOCOL_ERROR)
    ),
    Case(
        "6.10",
        "continuation_on_stream_0",
        frame(HEADERS, 0, 1, BLOCK[:9]) + frame(CONTINUATION, 4, 0, BLOCK[9:]),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "6.10",
        "continuation_on_another_stream",
        frame(HEADERS, 0, 1, BLOCK[:9]) + frame(CONTINUATION, 4, 3, BLOCK[9:]),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "6.10",
        "continuation_after_the_last",
        CALL + frame(CONTINUATION, 4, 1, b""),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "6.10",
        "continuation_after_data",
        CALL + body(message(b""), flags=0) + frame(CONTINUATION, 4, 1),
        connection(PROTOCOL_ERROR),
    ),
    Case(
        "6.10",
        "continuation",
        frame(HEADERS, 0, 1, BLOCK[:9]) + frame(CONTINUATION, 4, 1, BLOCK[9:]) + MESSAGE,
        ANSWERED,
    ),
    Case(
        "6.10",
        "empty_continuations",
        frame(HEADERS, 0, 1, b"")
        + frame(CONTINUATION, 0, 1) * 3
        + frame(CONTINUATION, 4, 1, BLOCK)
        + MESSAGE,
        ANSWERED,
    ),
    Case(
        "10.5",
        "continuations_without_an_end",
        frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1) * 200,
        connection(ENHANCE_YOUR_CALM),
    ),
]
