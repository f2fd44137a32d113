"""A server of gRPC with frames of every kind: the outcomes that HTTP/2 requires, over a socket.

The cases and their sections are in `h2_cases.py`.  The native make conforms; the reference
make is grpcio's core, whose deviations are listed, so that a change of either is noticed.
"""

from __future__ import annotations

import pytest

from gateway.transports.contract import ServerLimits
from tests.conformance.h2_cases import CASES
from tests.conformance.h2_kit import outcome
from tests.integration.grpc_echo import MAKES, Answers, echo, serving

LIMITS = ServerLimits(h2_streams=2)
TIMED = frozenset(
    {
        "half_closed_data",
        "half_closed_headers",
        "half_closed_reset",
        "more_than_the_window",
        "pseudo_field_in_trailers",
        "upper_case_in_trailers",
    }
)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cut", [0, 5], ids=["whole", "in_pieces"])
async def test_native_server_conforms(name: str, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case has the outcome of RFC 9113 and RFC 7541, also when its bytes arrive in pieces."""
    case = CASES[name]
    if cut and name in TIMED:
        pytest.skip("in pieces the call may have its response before the frame in question arrives")
    monkeypatch.setattr(MAKES, "server", "native")
    async with serving(Answers(echo), LIMITS) as server:
        found = await outcome(server.address, case.data, begin=case.begin, cut=cut)
    assert case.expected == found.summary


# Cases that grpcio's core accepts but should not: frames of streams that are idle, of the wrong end, or on
# none; windows, which are 64 bits wide there; fields, of which it checks only those it needs, and
# replies to invalid ones with a status; Huffman codes that end oddly.
_ACCEPTED = """
settings_ack_is_no_preface
idle_data idle_reset idle_window_update even_stream stream_number_goes_back
half_closed_data half_closed_headers reset_then_another_call push_promise
data_on_stream_0 headers_on_stream_0 reset_on_stream_0 ping_on_a_stream goaway_on_a_stream
priority_on_stream_0 priority_too_short priority_too_long priority_too_short_on_an_idle_stream

window_overflows window_overflows_in_steps window_of_a_stream_overflows settings_overflow_a_window

pseudo_field_in_trailers upper_case_in_trailers
content_length_too_small content_length_too_large content_length_of_no_body
content_length_is_no_number two_content_lengths
upper_case_name name_with_a_blank name_with_a_colon name_with_a_control name_beyond_ascii empty_name
value_with_nul value_with_cr value_with_lf path_with_lf
connection keep_alive proxy_connection transfer_encoding upgrade te_other_than_trailers
unknown_pseudo_field pseudo_field_of_an_answer pseudo_field_behind_others pseudo_field_twice
no_method no_scheme no_path empty_path connect another_method

table_size_behind_fields huffman_padded_by_a_byte huffman_with_its_end
"""
ACCEPTED = frozenset(_ACCEPTED.split())
# Cases that it refuses but should not, or refuses in another way than it should.
REFUSED = {
    "undefined_flags": "closed",
    "settings_ack_unasked": "closed",
    "padded_data": "stream 1: 1",  # it knows no padding
    "data_padded_by_nothing": "stream 1: 1",
    "data_of_nothing_but_padding": "stream 1: 1",
    "padding_as_long_as_the_frame": "stream 1: 1",
    "padding_longer_than_the_frame": "stream 1: 1",
    "padding_of_an_empty_frame": "stream 1: 1",
    "padded_headers": "closed",
    "headers_with_padding_and_priority": "closed",
    "more_than_the_window": "stream 1: 1",
    "update_by_nothing_on_a_stream": "closed",
    "second_headers_without_the_end": "closed",
}
QUEUED = "more_streams_than_allowed"
"""It queues a few more streams, and refuses some of them at random."""


@pytest.mark.parametrize("name", sorted(CASES.keys() - {QUEUED}))
async def test_reference_server_differs_as_listed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference server may close a connection without GOAWAY; other deviations are listed."""
    monkeypatch.setattr(MAKES, "server", "reference")
    case = CASES[name]
    async with serving(Answers(echo), LIMITS) as server:
        found = await outcome(server.address, case.data, begin=case.begin)
    if name in ACCEPTED:
        assert found.summary in ("answered", "ignored")
    elif name in REFUSED:
        assert REFUSED[name] == found.summary
    elif case.expected.startswith("connection"):
        assert found.summary in ("closed", case.expected)
    else:
        assert case.expected == found.summary
