"""Latencies at a fixed rate: the log of the load generator, and the percentiles."""

from benchmarks.load import TimedReply, timed_replies
from benchmarks.report import tail_table
from benchmarks.tail import Row, row_of


def test_reads_the_log_of_h2load() -> None:
    """A line has the start, the status and the time until the end of the reply."""
    log = "1764000000000000\t200\t310\n1764000000005000\t503\t95\n1764000000010000\t-1\t7\n"
    assert timed_replies(log) == [
        TimedReply(310, is_ok=True),
        TimedReply(95, is_ok=False),
        TimedReply(7, is_ok=False),
    ]


def test_percentiles_cover_all_requests() -> None:
    """Of a thousand requests, the slowest is the 99.9th percentile; failed ones are counted."""
    replies = [TimedReply(us, is_ok=us != 5) for us in range(1000, 0, -1)]
    expected = Row("job", "gateway", 200, 1000, p50_us=501, p99_us=991, p99_9_us=1000, errors=1)
    assert row_of("job", "gateway", 200, replies) == expected


def test_the_table_has_a_line_for_each_system_and_rate() -> None:
    """The line has percentiles and errors."""
    table = tail_table([Row("json-grpc", "gateway", 2000, 30_000, 310.0, 702.4, 1500.0, 2)])
    assert table.splitlines()[1].split() == [
        "json-grpc",
        "gateway",
        "2,000",
        "30,000",
        "310",
        "702",
        "1,500",
        "2",
    ]
