"""The load of requests as applications send them: where a response ends, and whether it is good."""

from __future__ import annotations

import time

import pytest

from benchmarks import applications, appload, jobs

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (GOOD, (b"", 1, 0)),
        (GOOD[:-1], (GOOD[:-1], 0, 0)),
        (GOOD.replace(b"200 OK", b"503 X"), (b"", 0, 1)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (b"", 1, 0)),
    ],
)
def test_a_response_of_http_ends_with_its_body(
    data: bytes, outcome: tuple[bytes, int, int]
) -> None:
    """A part of it is kept; a status other than 200 is an error."""
    assert outcome == appload.take_http(data, lambda _data: None)


def test_a_call_ends_with_its_trailers_and_needs_a_message() -> None:
    """SETTINGS are acknowledged; a call that ends without a message has failed."""
    sent = b"".join(
        (
            b"\0\0\0\x04\0\0\0\0\0",
            b"\0\0\1\1\4\0\0\0\1\x88",
            b"\0\0\2\0\0\0\0\0\1ab",
            b"\0\0\1\1\5\0\0\0\1\x88",
        )
    )
    written: list[bytes] = []
    assert (b"", 1, 0) == appload.take_grpc(sent, written.append)
    assert [b"\0\0\0\x04\x01\0\0\0\0"] == written
    assert (b"", 0, 1) == appload.take_grpc(b"\0\0\1\1\5\0\0\0\3\x88", written.append)
    assert (sent[9:30], 0, 0) == appload.take_grpc(sent[:30], written.append)


def test_jobs_compare_the_gateway_with_itself_and_a_peer() -> None:
    """Each kind has a job for HTTP and one for gRPC, in which all but one system get that kind."""
    found = [job for job in jobs.all_jobs() if job.name.endswith(applications.KINDS)]
    assert 2 * len(applications.KINDS) == len(found)
    for job in found:
        kinds = [each.kind for each in job.contenders]
        own = job.name.split()[1]
        assert [own, jobs.REPEATED, own] == kinds


class RecordingTransport:
    """Records what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.written.append(b"end")


async def test_a_request_that_is_due_early_waits_for_the_response_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its latency begins when it is due, and the connection closes after the last response."""
    latencies: list[int] = []
    clock = iter((1_000, 4_000, 6_000, 90_000)).__next__  # due, due, response, response
    monkeypatch.setattr(time, "perf_counter_ns", clock)
    requests = iter([b"1", b"2"])
    lane = appload.TimedLane(requests, appload.take_http, 0.0, latencies)
    transport = RecordingTransport()
    lane.connection_made(transport)
    lane.on_due()
    lane.on_due()
    lane.on_end()
    assert [b"1"] == transport.written
    lane.data_received(GOOD)
    assert [b"1", b"2"] == transport.written
    lane.data_received(GOOD)
    assert [b"1", b"2", b"end"] == transport.written
    assert lane.over.done()
    assert [5, 86] == latencies
