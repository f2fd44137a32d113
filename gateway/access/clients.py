"""The clients of the configuration, found by what their credentials say."""

import pwd
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from gateway.config.access import ClientConfig
from gateway.ir.errors import Unauthenticated
from gateway.ir.identity import Identity
from gateway.settings.patterns import globs

_MAX_CACHED: Final = 1024


class DisabledClient(Unauthenticated):
    """The client may not use its credentials."""

    was_sent = True


class Patterns:
    """Patterns with the clients that they stand for, in the order of the file."""

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        self._entries = [(globs((pattern,)), client) for pattern, client in entries]
        self._found: dict[str, str | None] = {}

    def client(self, value: str) -> str | None:
        """Return the first client with a pattern that matches *value*; None without one."""
        if value in self._found:
            return self._found[value]
        found = next((client for matches, client in self._entries if matches(value)), None)
        if len(self._found) >= _MAX_CACHED:
            self._found.clear()
        self._found[value] = found
        return found

    def __bool__(self) -> bool:
        return bool(self._entries)


class CertificatePatterns:
    """Patterns of names in certificates; those of DNS names are compared without case.

    Source: RFC 5280 7.2.
    """

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        entries = list(entries)
        self._others = Patterns(entries)
        self._dns = Patterns((pattern.lower(), client) for pattern, client in entries)

    def client(self, name: str) -> str | None:
        """Return the first client with a pattern that matches *name*; None without one.

        Args:
            name: A URI, `dns:NAME` in lower case or `cn:NAME`.
        """
        return (self._dns if name.startswith("dns:") else self._others).client(name)

    def __bool__(self) -> bool:
        return bool(self._others)


class Clients:
    """The clients of a configuration.

    Args:
        clients: By name.
    """

    def __init__(self, clients: Mapping[str, ClientConfig]) -> None:
        self._clients = clients
        self.certificates = CertificatePatterns(
            (pattern, name) for name, each in clients.items() for pattern in each.certificates
        )
        self.proxied = Patterns(
            (pattern, name) for name, each in clients.items() for pattern in each.proxied
        )
        self._users = dict(_users(clients))
        self._subjects: dict[str, Patterns] = {}
        for issuer in {issuer for each in clients.values() for issuer in each.subjects}:
            self._subjects[issuer] = Patterns(
                (pattern, name)
                for name, each in clients.items()
                for pattern in each.subjects.get(issuer, ())
            )

    def subject(self, issuer: str, value: str) -> str | None:
        """Return the client that the tokens of *issuer* call *value*; None without one."""
        patterns = self._subjects.get(issuer)
        return None if patterns is None else patterns.client(value)

    def unix_user(self, user_id: int) -> str | None:
        """Return the client of a process of *user_id*; None without one."""
        return self._users.get(user_id)

    def identity(
        self,
        name: str,
        *,
        groups: Iterable[str] = (),
        claims: Mapping[str, Any] | None = None,
        credential: str = "",
        expires: float | None = None,
        shown: Mapping[str, str] = MappingProxyType({}),
    ) -> Identity:
        """Return the client called *name*, which need not be listed.

        Raises:
            DisabledClient: It may not use its credentials.
        """
        listed = self._clients.get(name, _UNLISTED)
        if not listed.enabled:
            raise DisabledClient("the client of this credential is disabled")
        return Identity(
            name,
            groups=frozenset((*listed.groups, *groups)),
            tier=listed.tier or "",
            labels=listed.labels,
            claims={} if claims is None else claims,
            credential=credential,
            expires=expires,
            shown=shown,
        )


_UNLISTED: Final = ClientConfig()


def _users(clients: Mapping[str, ClientConfig]) -> Iterator[tuple[int, str]]:
    """Yield user ids with their clients; a later entry of the same id does not count."""
    found: dict[int, str] = {}
    for name, each in clients.items():
        for user in each.unix_users:
            if user.isascii() and user.isdecimal():
                found.setdefault(int(user), name)
            else:
                with suppress(KeyError):  # a user that this machine does not have never connects
                    found.setdefault(pwd.getpwnam(user).pw_uid, name)
    yield from found.items()
