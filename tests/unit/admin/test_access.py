"""Access to the admin port: who may read, change and see payloads."""

from __future__ import annotations

import base64

import pytest

from gateway.admin.access import VERDICT, AdminAccess, access_of
from gateway.api.admin import AdminNeed
from gateway.config.admin import AdminConfig
from gateway.ir.context import Client
from gateway.settings.units import Address, StreamAddress
from gateway.wire.http import Headers, HttpRequest

TOKEN = "a-token-of-32-characters-at-least"
HERE = "127.0.0.1"
AWAY = "10.0.0.9"
OPEN = AdminAccess()
GUARDED = AdminAccess(TOKEN)
HOST = {"Host": "127.0.0.1:9901"}
PAGE = {**HOST, "x-gateway-admin": "1"}
BASIC = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()


def status(
    access: AdminAccess,
    need: AdminNeed,
    headers: dict[str, str],
    address: str = HERE,
    opened: str = "",
) -> int:
    wire = HttpRequest("POST", "/", headers=Headers(list(headers.items())), client=Client(address))
    refusal = access.refusal(wire, need, opened)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:9901", 200),
        ("[::1]:9901", 200),
        ("localhost:9901", 200),
        ("LOCALHOST", 200),
        ("10.1.2.3", 200),
        ("gateway.example.com:9901", 200),
        ("Gateway.Example.Com.", 200),
        ("evil.example:9901", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("0x7f000001", 403),
        ("2130706433", 403),
        ("[evil]", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("need", [AdminNeed.READ, AdminNeed.MIGRATE])
def test_unknown_hosts_are_rejected(host: str, expected: int, need: AdminNeed) -> None:
    """The Host header is an IP address, localhost or a configured name, against DNS rebinding."""
    access = AdminAccess(hosts=["gateway.example.com"])
    assert expected == status(access, need, {**PAGE, "Host": host})


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (PAGE, 200),
        (HOST, 403),
        ({**PAGE, "Origin": "http://127.0.0.1:9901", "Sec-Fetch-Site": "same-origin"}, 200),
        ({**PAGE, "Origin": "http://["}, 403),
        ({**PAGE, "Origin": "https://evil.example"}, 403),
        ({**PAGE, "Origin": "http://127.0.0.1:9902"}, 403),
        ({**PAGE, "Origin": "null"}, 403),
        ({**PAGE, "Origin": ""}, 403),
        ({**PAGE, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**PAGE, "Sec-Fetch-Site": "same-site"}, 403),
        ({**PAGE, "Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_protected_requests_of_other_sites_are_rejected(
    headers: dict[str, str], expected: int
) -> None:
    """Protected requests need the header and the own origin; reads need neither."""
    assert expected == status(OPEN, AdminNeed.MIGRATE, headers)
    assert 200 == status(OPEN, AdminNeed.READ, headers)


@pytest.mark.parametrize(
    ("access", "address", "authorization", "expected"),
    [
        # Expected: for a verdict, for reading, for what is protected.
        (OPEN, HERE, None, (200, 200, 200)),
        (OPEN, AWAY, None, (200, 200, 403)),
        (OPEN, AWAY, f"Bearer {TOKEN}", (401, 401, 401)),
        (GUARDED, HERE, None, (200, 200, 200)),
        (GUARDED, "::1", None, (200, 200, 200)),
        (GUARDED, "::ffff:127.0.0.1", None, (200, 200, 200)),
        (GUARDED, AWAY, None, (200, 401, 401)),
        (GUARDED, "", None, (200, 401, 401)),
        (GUARDED, AWAY, f"Bearer {TOKEN}", (200, 200, 200)),
        (GUARDED, AWAY, f"bearer  {TOKEN} ", (200, 200, 200)),
        (GUARDED, AWAY, f"Basic {BASIC}", (200, 200, 200)),
        (GUARDED, AWAY, f"Bearer {TOKEN}x", (401, 401, 401)),
        (GUARDED, AWAY, f"Bearer {TOKEN[:-1]}", (401, 401, 401)),
        (GUARDED, AWAY, "Bearer ", (401, 401, 401)),
        (GUARDED, AWAY, "Basic !", (401, 401, 401)),
        (GUARDED, AWAY, "Basic /w==", (401, 401, 401)),
        (GUARDED, HERE, "Bearer wrong", (401, 401, 401)),
    ],
)
def test_remote_clients_need_the_token(
    access: AdminAccess, address: str, authorization: str | None, expected: tuple[int, int, int]
) -> None:
    """A wrong token is rejected from every address and for every need."""
    headers = PAGE if authorization is None else {**PAGE, "Authorization": authorization}
    assert expected == (
        status(access, AdminNeed.READ, headers, address, VERDICT),
        status(access, AdminNeed.READ, headers, address),
        status(access, AdminNeed.MIGRATE, headers, address),
    )


@pytest.mark.parametrize("opened", ["probes", "metrics", "status", "redirects"])
def test_open_routes_are_not_checked(opened: str) -> None:
    """Load balancers and scrapers send any host; a wrong token does not stop them."""
    headers = {"Host": "gateway.default.svc", "Authorization": "Bearer wrong"}
    assert 200 == status(GUARDED, AdminNeed.READ, headers, AWAY, opened)


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_proxied_requests_are_not_local(name: str) -> None:
    """The proxy may run on this machine while its clients run on others."""
    assert 403 == status(OPEN, AdminNeed.MIGRATE, {**PAGE, name: "10.0.0.9"})
    assert 401 == status(GUARDED, AdminNeed.READ, {**PAGE, name: "10.0.0.9"})


def test_the_host_of_the_listen_address_is_allowed() -> None:
    """Clients use the host of an address such as gateway.internal:9901; `*` allows none."""
    named = access_of(AdminConfig(address=StreamAddress(Address("gateway.internal", 9901))))
    everywhere = access_of(
        AdminConfig(address=StreamAddress(Address("", 9901)), hosts=("a.example",))
    )
    assert 200 == status(named, AdminNeed.READ, {"Host": "gateway.internal:9901"})
    assert 403 == status(everywhere, AdminNeed.READ, {"Host": ""})
    assert 200 == status(everywhere, AdminNeed.READ, {"Host": "a.example"})


def test_remote_clients_run_commands_with_the_token() -> None:
    """Command paths need no extra header, because curl sends none."""
    sent, wrong = ({"Authorization": f"Bearer {each}"} for each in (TOKEN, "wrong"))
    assert 200 == status(GUARDED, AdminNeed.OPERATE, sent, AWAY)
    assert 401 == status(GUARDED, AdminNeed.OPERATE, wrong, AWAY)
    assert 401 == status(GUARDED, AdminNeed.OPERATE, wrong, HERE)
    assert 403 == status(GUARDED, AdminNeed.OPERATE, {}, AWAY)
