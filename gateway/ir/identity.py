"""Who calls: the client that the credentials of a request name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

_NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})


class Identity(Struct, frozen=True, eq=False):
    """The client of a request, as an authenticator names it.

    Attributes:
        name: Its name, as in `clients` of the configuration.
        groups: The groups that it belongs to.
        tier: Its tier; "" for none.
        labels: Its labels.
        claims: The claims of its token; none if it sent no token.
        credential: The id of its key, or the name of the issuer of its token, for the log only.
        expires: When the credential ends, in seconds since 1970; None if it does not.
        shown: What else the log shows of the credential: its `subject`, `kid` and `issuer`.
    """

    name: str
    groups: frozenset[str] = frozenset()
    tier: str = ""
    labels: Mapping[str, str] = _NO_VALUES
    claims: Mapping[str, Any] = _NO_VALUES
    credential: str = ""
    expires: float | None = None
    shown: Mapping[str, str] = _NO_VALUES


ANONYMOUS: Final = Identity("anonymous")
"""A client that sent no credential, or whose listener reads none."""

GATEWAY: Final = Identity("")
"""The gateway itself, which asks about models. No credential names it."""
