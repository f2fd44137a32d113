"""Whom an authenticator names: never by what another request of the connection sent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.access.authenticator import (
    AccessRules,
    InvalidCredential,
    ListenerAuthenticator,
    Mode,
    Proxy,
)
from gateway.access.clients import Clients
from gateway.access.key_file import KeyFile
from gateway.api.access import Fields, Peer
from gateway.config.access import ClientConfig, ProxyConfig
from gateway.ir.context import Client
from gateway.ir.errors import GatewayError
from gateway.ir.identity import Identity
from gateway.transports.authentication import Authentication
from gateway.transports.callers import IdentifiedCaller
from gateway.wire.http import Headers

NOW = datetime(2026, 11, 26, tzinfo=UTC)
_KEYS = {
    name: f"tg_{name}_0123456789abcdefghijklmnopqrstuvwxyz" for name in ("a", "b", "late", "off")
}
_TOKENS = ["a.token.1", "b.token.2", "bad.token.3"]
_CLIENTS = {
    "a": ClientConfig(groups=("finance",), proxied=("user-a",), certificates=("dns:a",)),
    "b": ClientConfig(proxied=("user-b",), unix_users=("7",)),
    "off": ClientConfig(enabled=False),
}


class Tokens:
    """Reads tokens that begin with the name of their client, and end at a time of their own."""

    def identity(self, token: str, _address: str, clients: Clients, /) -> Identity:
        """Return the client of a token."""
        name, _, number = token.split(".")
        if name == "bad":
            raise InvalidCredential("the token is wrong", "jwt", "signature")
        return clients.identity(name, credential="corp", expires=NOW.timestamp() + int(number))


def _rules(with_b: bool) -> AccessRules:
    keys = KeyFile(bytes(16)).added("a", _KEYS["a"], NOW).added("off", _KEYS["off"], NOW)
    keys = keys.added("a", _KEYS["late"], NOW, expires=NOW + timedelta(seconds=2))
    if with_b:
        keys = keys.added("b", _KEYS["b"], NOW)
    config: dict[str, Any] = {"name": "edge", "addresses": ["10.0.0.0/8"]}
    config |= {"client_header": "x-user", "groups_header": "x-groups"}
    proxy = Proxy(ProxyConfig.model_validate(config), [ip_network("10.0.0.0/8")])
    return AccessRules(Clients(_CLIENTS), keys, tokens=Tokens(), proxies=(proxy,))


_credentials = st.sampled_from([*_KEYS.values(), *_TOKENS, "tg_unknown", "", "x"])
_fields = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["x-api-key", "X-Api-Key", "x-api-kez"]), _credentials),
        st.tuples(
            st.sampled_from(["authorization", "AUTHORIZATION"]),
            st.builds(
                "{} {}".format, st.sampled_from(["Bearer", "bearer", "Digest"]), _credentials
            ),
        ),
        st.tuples(st.sampled_from(["x-user", "X-User"]), st.sampled_from(["user-a", "user-b"])),
        st.tuples(st.just("x-groups"), st.sampled_from(["g", "g, h", ""])),
        st.tuples(st.sampled_from(["user-agent", "x-id"]), st.sampled_from(["1", "2"])),
    ),
    max_size=3,
).map(tuple)


@dataclass(frozen=True)
class Step:
    """A request, and what happens before it.

    Attributes:
        head: The place of its head among those of the connection.
        is_copy: Whether the head is another object with equal fields.
        data: What a frame carries.
        is_public: Whether it asks for the health of the server.
        seconds: How long after the request before.
        changes: Whether the file of keys changes before.
    """

    head: int
    is_copy: bool
    data: str
    is_public: bool
    seconds: int
    changes: bool


_steps = st.builds(
    Step,
    st.integers(0, 3),
    st.booleans(),
    st.just("") | _credentials,
    st.booleans(),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([False, False, False, True]),
)


def _shown(found: Identity) -> tuple[Any, ...]:
    return found.name, found.groups, found.credential, found.expires


def _outcome(
    authentication: Authentication, caller: IdentifiedCaller, fields: Fields, step: Step
) -> tuple[Any, ...]:
    path = "/health" if step.is_public else "/infer"
    agent = next((value for name, value in fields if name.lower() == "user-agent"), "")
    try:
        found = authentication.client(caller, fields, path, step.data)
    except GatewayError as error:
        return type(error), error.message, error.client == Client(caller.peer.address, str(agent))
    assert not hasattr(found, "__await__")
    assert agent == found.agent
    return _shown(found.identity)


@given(
    st.lists(_fields, min_size=4, max_size=4),
    st.lists(_steps, max_size=12),
    st.sampled_from(["required", "optional", "off"]),
    st.sampled_from([("10.0.0.7", (), None), ("9.9.9.9", ("dns:a",), None), ("", (), 7)]),
    st.booleans(),
)
def test_a_connection_names_whom_its_request_names(
    heads: list[tuple[tuple[str, str], ...]],
    steps: list[Step],
    mode: Mode,
    peer: tuple[str, tuple[str, ...], int | None],
    is_http: bool,
) -> None:
    """Each request of a connection gets the client, or the refusal, of a connection of its own."""
    now = NOW.timestamp()
    with_b = True

    def authentication(rules: AccessRules) -> tuple[ListenerAuthenticator, Authentication]:
        authenticator = ListenerAuthenticator("main", mode, rules, lambda *_: None, lambda: now)
        return authenticator, Authentication(
            authenticator, frozenset({"/health"}), authenticator.hidden
        )

    authenticator, ours = authentication(_rules(with_b))
    caller = IdentifiedCaller(Peer(*peer))
    objects: list[Any] = [Headers(each) if is_http else each for each in heads]
    for step in steps:
        now += step.seconds
        if step.changes:
            with_b = not with_b
            authenticator.rules = _rules(with_b)
        fields = objects[step.head]
        if step.is_copy:
            pairs = heads[step.head]
            fields = Headers(pairs) if is_http else (*pairs, ("x", ""))[:-1]
        _, fresh = authentication(_rules(with_b))
        other = IdentifiedCaller(Peer(*peer))
        expected = _outcome(fresh, other, fields, step)
        assert expected == _outcome(ours, caller, fields, step)
        assert expected[2] is not False  # a refusal names nobody
        assert tuple(fresh.visible(other, fields)) == tuple(ours.visible(caller, fields))
