"""When a silent server gets a PING, and when it is gone."""

from __future__ import annotations

from gateway.transports.grpc.silence import ServerSilence


def test_a_server_gets_one_ping_after_five_seconds_of_silence() -> None:
    """Further calls that end meanwhile send no other PING."""
    silence = ServerSilence(100.0)
    assert [False, True, False] == [silence.should_ping(now) for now in (104.9, 105.0, 106.0)]


def test_a_server_that_does_not_acknowledge_is_gone_after_five_seconds() -> None:
    """Before that, and without a PING, it is not."""
    silence = ServerSilence(100.0)
    assert not silence.is_gone(200.0)
    assert silence.should_ping(200.0)
    assert [False, True] == [silence.is_gone(now) for now in (204.9, 205.0)]


def test_any_byte_shows_that_the_server_is_there() -> None:
    """It need not be the acknowledgement."""
    silence = ServerSilence(100.0)
    assert silence.should_ping(110.0)
    silence.heard(114.0, only_pong=False)
    assert not silence.is_gone(120.0)
    assert [False, True] == [silence.should_ping(now) for now in (118.9, 119.0)]


def test_a_slow_server_gets_three_pings_until_it_replies() -> None:
    """It would close the connection at the fourth."""
    silence, now = ServerSilence(0.0), 0.0
    pings = 0
    for _ in range(5):
        now += 10
        pings += silence.should_ping(now)
        silence.heard(now, only_pong=True)
    assert 3 == pings
    silence.heard(now, only_pong=False)
    assert silence.should_ping(now + 10)


def test_calls_that_wait_send_one_ping_until_the_server_replies() -> None:
    """The others are left to calls that end without a response."""
    silence = ServerSilence(0.0)
    assert [False, True] == [silence.should_ping(now, is_waiting=True) for now in (4.9, 5.0)]
    silence.heard(6.0, only_pong=True)
    assert not silence.should_ping(20.0, is_waiting=True)
    assert silence.should_ping(20.0)
    silence.heard(21.0, only_pong=False)
    assert silence.should_ping(26.0, is_waiting=True)
