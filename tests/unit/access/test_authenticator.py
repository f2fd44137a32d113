"""Whom the authenticator of a listener names, whatever the same connection sent before."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.access.authenticator import AccessRules, ListenerAuthenticator
from gateway.access.clients import Clients
from gateway.access.key_file import KeyFile
from gateway.api.access import Credentials, Peer
from gateway.ir.errors import Unauthenticated
from gateway.ir.identity import ANONYMOUS

KEY = "tg_0123456789abcdefghijklmnopqrstuvwxyzABCD"
NOW = datetime(2026, 11, 26, tzinfo=UTC)


def authenticator(keys: KeyFile) -> ListenerAuthenticator:
    """Return the authenticator of a listener that requires a credential."""
    rules = AccessRules(Clients({}), keys=keys)
    return ListenerAuthenticator("main", "required", rules, lambda *_: None, NOW.timestamp)


def test_a_public_health_check_opens_nothing_to_the_next_call() -> None:
    """After a health check without a credential, a call without one is refused."""
    asked = authenticator(KeyFile.new().added("fraud", KEY, NOW))
    peer = Peer("10.0.0.7")
    # Calls without metadata, and frames, have the same empty tuple.
    assert ANONYMOUS is asked.authenticate(Credentials((), peer, is_public=True))
    with pytest.raises(Unauthenticated, match="a credential is missing"):
        asked.authenticate(Credentials((), peer))
