"""Tokens (JWT) of several issuers: checked in order of cost, verified once, remembered.

Form, algorithm, key, issuer, audience and times come before the signature, which costs 0.3 to 0.5
ms.  The number of signatures of new tokens that are verified in a second is limited, for each
address and in total.  Nothing is read from the header of a token but `alg`, `kid`, `crit` and
`enc`: a token that brings its own key is verified by ours.

Source: RFC 7515, RFC 7519, RFC 8725.
"""

from __future__ import annotations

import hashlib
import math
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import orjson

from gateway.access.authenticator import InvalidCredential
from gateway.access.clients import Clients, DisabledClient
from gateway.access.key_sets import KeySet, VerifyKey
from gateway.config.access import JwtConfig
from gateway.ir.errors import RateExceeded, Unavailable
from gateway.ir.identity import Identity
from gateway.ir.limits import is_blank, names_in
from gateway.ir.texts import visible
from gateway.policies.access.rules import claim_of
from gateway.policies.limits.fair_share import CallRate

MAX_TOKEN_BYTES: Final = 8192
MAX_VERIFIED: Final = 10_000
_MAX_SHOWN: Final = 128
_TOTAL_FACTOR: Final = 4
_RETRY_AFTER_S: Final = 1.0


def invalid(reason: str, message: str) -> InvalidCredential:
    """Return the error of a token."""
    return InvalidCredential(f"the token {message}", "jwt", reason)


class CheckBudget:
    """Limits the signatures that are verified in a second.

    Args:
        rate: For one address; four times as many for all.
        clock: Monotonic seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = monotonic) -> None:
        burst = max(1, int(rate))
        self._of_address = CallRate(rate, burst, clock=clock)
        self._of_all = CallRate(rate * _TOTAL_FACTOR, burst * _TOTAL_FACTOR, clock=clock)

    def admit(self, address: str) -> bool:
        """Count one check of a token from *address*; return False if that is too many."""
        # An address above its own limit takes nothing from the others.
        return self._of_address.admit(address) and self._of_all.admit("")


@dataclass(frozen=True, slots=True, eq=False)
class Issuer:
    """An issuer of tokens.

    Attributes:
        config: The issuer as the file describes it.
        key_set: Its keys.
    """

    config: JwtConfig
    key_set: KeySet


@dataclass(slots=True, eq=False)
class _Verified:
    """A token whose signature is right.

    Attributes:
        key: The key that verified it.
        shown: What the log shows of it.
        identity: Whom it names, for `clients`.
    """

    issuer: Issuer
    key: VerifyKey
    value: str
    groups: tuple[str, ...]
    claims: Mapping[str, Any]
    ends: float
    shown: Mapping[str, str]
    clients: Clients | None = None
    identity: Identity | None = None


class JwtReader:
    """Verifies the tokens of some issuers.

    Args:
        issuers: The issuers.
        budget: Limits the signatures that are verified.
        now: Seconds since 1970.
    """

    def __init__(
        self,
        issuers: Iterable[Issuer],
        budget: CheckBudget,
        now: Callable[[], float] = time.time,  # noqa: TID251  # tokens have calendar times
    ) -> None:
        from jwt.algorithms import get_default_algorithms  # noqa: PLC0415  # an extra

        self._algorithms = get_default_algorithms()
        self._issuers: dict[str, list[Issuer]] = {}
        for each in issuers:
            self._issuers.setdefault(each.config.issuer, []).append(each)
        self._budget = budget
        self._now = now
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()

    def identity(self, token: str, address: str, clients: Clients, /) -> Identity:
        """Return whom *token* names.

        Args:
            token: Three parts with dots between them.
            address: The address of the client.
            clients: The clients of the configuration.

        Raises:
            InvalidCredential: The token is wrong.
            RateExceeded: Too many new tokens are verified now.
            Unavailable: The key set of its issuer was not fetched yet.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise invalid("form", f"is too long: expected at most {MAX_TOKEN_BYTES} bytes")
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = self._verified.get(digest)
        if found is None or not self._is_current(found):
            found = self._verify(token, address)
            self._verified[digest] = found
            if len(self._verified) > MAX_VERIFIED:
                self._verified.popitem(last=False)
        if found.clients is not clients or found.identity is None:
            try:
                found.identity, found.clients = _named(found, clients), clients
            except InvalidCredential as error:
                error.shown = found.shown
                raise
        return found.identity

    def _is_current(self, found: _Verified) -> bool:
        """Return whether a token has not ended, and its key is still in the set."""
        keys = found.issuer.key_set.keys or ()
        if found.key not in keys:
            same = [each for each in keys if each.identity == found.key.identity]
            if not same:
                return False
            found.key = same[0]
        return self._now() < found.ends

    def _verify(self, token: str, address: str) -> _Verified:
        signed, _, last = token.rpartition(".")
        first, _, middle = signed.partition(".")
        header, claims = _object(first, "header"), _object(middle, "claims")
        shown = {
            name: visible(str(value), _MAX_SHOWN)
            for name, value in (
                ("subject", claims.get("sub")),
                ("kid", header.get("kid")),
                ("issuer", claims.get("iss")),
            )
            if value
        }
        try:
            return self._verified_by(signed, header, claims, _decoded(last), shown, address)
        except InvalidCredential as error:
            error.shown = shown  # nothing of it is verified
            raise

    def _verified_by(  # the parts of a token
        self,
        signed: str,
        header: Mapping[str, Any],
        claims: Mapping[str, Any],
        signature: bytes,
        shown: Mapping[str, str],
        address: str,
    ) -> _Verified:
        algorithm = header.get("alg")
        if "crit" in header or "enc" in header:
            raise invalid("form", "has a header that is not supported: 'crit' or 'enc'")
        issuer = self._issuer(claims)
        if algorithm not in issuer.config.algorithms:
            raise invalid("algorithm", "has an algorithm that its issuer may not use")
        ends = self._check_times(claims, issuer.config.leeway)
        value = claim_of(claims, issuer.config.client)
        if not isinstance(value, str) or is_blank(value):
            raise invalid("client", f"does not name its client: no text in {issuer.config.client}")
        key = self._key(issuer, header.get("kid"), algorithm)
        if not self._budget.admit(address):
            raise _too_many()
        try:
            is_right = self._algorithms[algorithm].verify(
                signed.encode("ascii"), key.key, signature
            )
        except (ValueError, TypeError):
            is_right = False
        if not is_right:
            raise invalid("signature", "has a wrong signature")
        groups = claim_of(claims, issuer.config.groups) if issuer.config.groups else ()
        return _Verified(issuer, key, value, _texts(groups), claims, ends, shown)

    def _issuer(self, claims: Mapping[str, Any]) -> Issuer:
        """Return the issuer that a token names, by an audience that it is for."""
        name, audience = claims.get("iss"), claims.get("aud")
        issuers = self._issuers.get(name, ()) if isinstance(name, str) else ()
        if not issuers:
            raise invalid("issuer", "is of another issuer")
        for_whom = set(_texts(audience))
        for issuer in issuers:
            if for_whom.intersection(issuer.config.audience):
                return issuer
        raise invalid("audience", "is for another audience")

    def _check_times(self, claims: Mapping[str, Any], leeway_s: float) -> float:
        """Return when a token ends. Raises InvalidCredential outside its time."""
        now = self._now()
        times: dict[str, float] = {}
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise invalid("form", f"has a time that is no number: {name}")
            times[name] = float(value)
        if "exp" not in times:
            raise invalid("form", "does not tell when it expires: expected 'exp'")
        ends = times["exp"] + leeway_s
        if now >= ends:
            raise invalid("expired", "has expired")
        for name in ("nbf", "iat"):
            if times.get(name, -math.inf) > now + leeway_s:
                raise invalid("not_yet", f"is not valid yet: {name} is in the future")
        return ends

    def _key(self, issuer: Issuer, kid: Any, algorithm: str) -> VerifyKey:
        keys = issuer.key_set.keys
        if keys is None:
            issuer.key_set.wanted.set()
            raise Unavailable(f"the keys of issuer {issuer.config.name!r} are not known yet")
        if kid is None:
            fitting = [each for each in keys if algorithm in each.algorithms]
            if len(fitting) != 1:
                raise invalid("key", f"has no 'kid', and {len(fitting)} keys fit; expected one")
            return fitting[0]
        named = [each for each in keys if each.kid == kid] if isinstance(kid, str) else []
        if not named:
            issuer.key_set.wanted.set()
            raise invalid("key", "is signed by an unknown key")
        fitting = [each for each in named if algorithm in each.algorithms]
        if not fitting:
            raise invalid("algorithm", "has an algorithm that does not fit its key")
        return fitting[0]


def _too_many() -> RateExceeded:
    error = RateExceeded("too many new tokens from this address", limit="token_checks")
    error.retry_after_s = _RETRY_AFTER_S
    return error


def _named(found: _Verified, clients: Clients) -> Identity:
    """Return the identity of a token. Raises InvalidCredential."""
    config = found.issuer.config
    name = clients.subject(config.name, found.value)
    if name is None and config.unlisted == "accept":
        name = f"{config.name}:{found.value}"
    if name is None:
        raise invalid("unknown", "names a client that is unknown")
    try:
        return clients.identity(
            name,
            groups=found.groups,
            claims=found.claims,
            credential=config.name,
            expires=found.ends,
            shown=found.shown,
        )
    except DisabledClient as error:
        raise InvalidCredential(error.message, "jwt", "disabled", config.name) from None


def _object(part: str, what: str) -> dict[str, Any]:
    try:
        found = orjson.loads(_decoded(part))
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise invalid("form", f"is malformed: its {what} are no JSON object")
    return found


def _decoded(part: str) -> bytes:
    """Return the bytes of base64url without padding, in the only form that encodes them."""
    try:
        encoded = part.encode("ascii")
        found = urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
    except ValueError:
        found, encoded = b"", b"?"
    if urlsafe_b64encode(found).rstrip(b"=") != encoded:
        raise invalid("form", "is malformed: expected three parts of base64url")
    return found


def _texts(value: Any) -> tuple[str, ...]:
    """Return a text, or a list of texts, as a tuple; what is no text, or blank, is left out."""
    return names_in(value if isinstance(value, list) else (value,))
