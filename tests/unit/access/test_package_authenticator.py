"""Authenticators of packages: asked where no credential names the client; faults cost one request."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.access.authenticator import AccessRules, ListenerAuthenticator
from gateway.access.clients import Clients
from gateway.access.control import PackageAuthenticator
from gateway.api.access import Credentials, Peer
from gateway.ir.errors import InternalError, Unauthenticated
from gateway.ir.identity import ANONYMOUS, Identity
from gateway.wire.http import Headers


class Scripted:
    """Returns or raises what it was given, at once or later."""

    def __init__(self, found: Any, *, later: bool = False) -> None:
        self.found = found
        self.later = later
        self.call_count = 0

    def authenticate(self, _credentials: Credentials, /) -> Any:
        self.call_count += 1
        return self._wait() if self.later else self._reply()

    async def _wait(self) -> Any:
        return self._reply()

    def _reply(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


async def ask(package: Scripted, *, is_public: bool = False, times: int = 1) -> list[Identity]:
    """Return the clients of equal requests of one connection."""
    rules = AccessRules(Clients({}), other=PackageAuthenticator(package, "scripted"))
    refused: list[tuple[str, str, str]] = []
    listener = ListenerAuthenticator("main", "required", rules, lambda *why: refused.append(why))
    credentials = Credentials(Headers((("a", "b"),)), Peer("10.0.0.7"), is_public=is_public)
    clients = []
    for _ in range(times):
        found = listener.authenticate(credentials)
        clients.append(await found if isinstance(found, Awaitable) else found)
    return clients


@pytest.mark.parametrize("later", [False, True])
async def test_a_package_names_the_client_of_each_request(later: bool) -> None:
    """It is asked about each request: what it reads is not known, so nothing is kept."""
    package = Scripted(Identity("ann"), later=later)
    assert ["ann", "ann"] == [each.name for each in await ask(package, times=2)]
    assert 2 == package.call_count


@pytest.mark.parametrize("later", [False, True])
async def test_a_package_refuses_a_client_but_no_public_question(later: bool) -> None:
    """What it raises is the error of the request; the health of the server stays public."""
    package = Scripted(Unauthenticated("unknown"), later=later)
    with pytest.raises(Unauthenticated, match="unknown"):
        await ask(package)
    assert [ANONYMOUS] == await ask(package, is_public=True)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("found", [ZeroDivisionError("a bug"), "no identity"])
async def test_a_bug_of_a_package_costs_its_own_request(found: Any, later: bool) -> None:
    """The error says nothing of the bug, and the log names the package."""
    package = Scripted(found, later=later)
    with capture_logs() as lines, pytest.raises(InternalError, match="internal error"):
        await ask(package)
    assert ["authenticator 'scripted'"] == [line["part"] for line in lines]
