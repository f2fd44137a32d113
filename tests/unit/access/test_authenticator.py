"""Whom the authenticator of a listener names, whatever the same connection sent before."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from gateway.access.authenticator import AccessRules, ListenerAuthenticator
from gateway.access.clients import Clients
from gateway.access.key_file import KeyFile
from gateway.api.access import Credentials, Peer
from gateway.ir.errors import Unauthenticated
from gateway.ir.identity import ANONYMOUS, Identity
from gateway.wire.http import Headers

KEY = "tg_0123456789abcdefghijklmnopqrstuvwxyzABCD"
OTHER_KEY = "tg_another456789abcdefghijklmnopqrstuvwxyz"
NOW = datetime(2026, 11, 26, tzinfo=UTC)
KEYS = KeyFile.new().added("fraud", KEY, NOW).added("risk", OTHER_KEY, NOW)


class Connection:
    """A connection to a listener that requires keys, with a clock."""

    def __init__(self, keys: KeyFile = KEYS) -> None:
        self.now = NOW
        self.authenticator = ListenerAuthenticator(
            "main", "required", rules(keys), lambda *_: None, self._now
        )
        self._peer = Peer("10.0.0.7")

    def _now(self) -> float:
        return self.now.timestamp()

    def client(self, *pairs: tuple[str, str], is_public: bool = False) -> str:
        """Return the client that a request with these headers names."""
        credentials = Credentials(Headers(pairs), self._peer, is_public=is_public)
        found = self.authenticator.authenticate(credentials)
        assert isinstance(found, Identity)
        return found.name


def rules(keys: KeyFile) -> AccessRules:
    """Return what decides who calls, by keys alone."""
    return AccessRules(Clients({}), keys=keys)


def test_a_public_health_check_opens_nothing_to_the_next_call() -> None:
    """After a health check without a credential, a call without one is refused."""
    authenticator, peer = Connection().authenticator, Peer("10.0.0.7")
    # Calls without metadata, and frames, have the same empty tuple.
    assert ANONYMOUS is authenticator.authenticate(Credentials((), peer, is_public=True))
    with pytest.raises(Unauthenticated, match="a credential is missing"):
        authenticator.authenticate(Credentials((), peer))


@pytest.mark.parametrize(
    "pairs",
    [
        [("x-api-key", KEY), ("x-api-key", "tg_wrong")],
        [("X-Api-Key", "tg_wrong"), ("x-api-key", KEY)],
        [("x-api-key", KEY), ("Authorization", "Bearer tg_wrong")],
        [("authorization", f"Bearer {KEY}"), ("AUTHORIZATION", "bearer tg_wrong")],
    ],
)
def test_each_credential_must_be_right(pairs: list[tuple[str, str]]) -> None:
    """A wrong credential beside a right one is refused, after the right one alone too."""
    connection = Connection()
    assert "fraud" == connection.client(pairs[0] if KEY in pairs[0][1] else pairs[1])
    with pytest.raises(Unauthenticated, match="the API key is unknown"):
        connection.client(*pairs)


def test_the_client_is_that_of_the_request() -> None:
    """Requests of a connection with other keys, places and cases of names have their own client."""
    connection = Connection()
    clients: Mapping[tuple[str, str], str] = {
        ("x-api-key", KEY): "fraud",
        ("X-API-KEY", OTHER_KEY): "risk",
        ("Authorization", f"Bearer {KEY}"): "fraud",
        ("authorization", f"bearer {OTHER_KEY}"): "risk",
    }
    for pair, client in [*clients.items(), *clients.items()]:
        assert client == connection.client(("accept", "*/*"), pair)
    with pytest.raises(Unauthenticated, match="a credential is missing"):
        connection.client(("accept", "*/*"))


def test_a_key_that_ends_is_refused_in_an_equal_request() -> None:
    """An expired key and one that the next file revokes are refused, though both were accepted."""
    keys = KEYS.added("late", "tg_late" + KEY, NOW, expires=NOW + timedelta(seconds=5))
    connection = Connection(keys)
    assert "late" == connection.client(("x-api-key", "tg_late" + KEY))
    assert "fraud" == connection.client(("x-api-key", KEY))
    connection.now += timedelta(seconds=5)
    with pytest.raises(Unauthenticated, match="the API key is expired"):
        connection.client(("x-api-key", "tg_late" + KEY))
    assert "fraud" == connection.client(("x-api-key", KEY))
    connection.authenticator.rules = rules(keys.revoked("k1", connection.now))
    with pytest.raises(Unauthenticated, match="the API key is revoked"):
        connection.client(("x-api-key", KEY))


def test_wrong_keys_leave_no_trace() -> None:
    """Keys that are refused are not remembered, so that a flood of them takes no memory."""
    connection = Connection()
    assert "fraud" == connection.client(("x-api-key", KEY))
    for number in range(100):
        with pytest.raises(Unauthenticated):
            connection.client(("x-api-key", f"tg_wrong{number}"))
    assert [KEY] == list(connection.authenticator.rules.key_identities)
