"""A process that may or may not reply."""

from __future__ import annotations

from structlog.testing import capture_logs

from gateway.processes.reply_watch import ReplyWatch


class FakeProcess:
    """Replies if the test lets it."""

    pid = 7

    def __init__(self) -> None:
        self.replies = True
        self.kills = 0

    async def ping(self) -> bool:
        return self.replies

    def kill(self) -> None:
        self.kills += 1


async def test_some_missed_polls_are_a_warning() -> None:
    """One or two prove nothing; after the third the process is silent, until it replies."""
    process = FakeProcess()
    watch = ReplyWatch(process, "worker", worker=1)
    found = []
    with capture_logs() as logs:
        for replies in (False, False, True, False, False, False, True):
            process.replies = replies
            await watch.poll(30.0)
            found.append(watch.is_silent)
    assert [False, False, False, False, False, True, False] == found
    assert [("process does not reply", 7.0), ("process replies again", None)] == [
        (each["event"], each.get("silent_s")) for each in logs
    ]
    assert {("worker", 1, 7)} == {(each["role"], each["worker"], each["pid"]) for each in logs}


async def test_a_silent_process_is_killed_once() -> None:
    """At the end of the timeout, and not before; it may take a while to end."""
    process = FakeProcess()
    process.replies = False
    watch = ReplyWatch(process, "worker")
    polls = 0
    while not watch.is_killed:
        await watch.poll(30.0)
        polls += 1
    assert (11, 1) == (polls, process.kills)  # a poll takes 3 s, the first pause does not count
    await watch.poll(30.0)
    assert 1 == process.kills


async def test_a_timeout_of_zero_kills_nothing() -> None:
    """The process stays silent for any time."""
    process = FakeProcess()
    process.replies = False
    watch = ReplyWatch(process, "worker")
    for _ in range(100):
        await watch.poll(0.0)
    assert (True, 0) == (watch.is_silent, process.kills)
