"""Key sets of the issuers of tokens (JWKS): read, fetched, and kept while fetches fail.

A set is read from a file, or fetched from a URL by a task of its own, so that no request waits for
a fetch.  Source: RFC 7517, RFC 7518 6.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import orjson
import structlog

from gateway.concurrency.timeouts import is_set_within
from gateway.ir.errors import GatewayError

log = structlog.get_logger(__name__)

MAX_BYTES: Final = 1 << 20
MAX_KEYS: Final = 100
FETCH_TIMEOUT_S: Final = 2.0
FETCH_INTERVAL_S: Final = 10.0
"""The shortest time between two fetches of one set, whatever asks for them."""

_MIN_RSA_BITS: Final = 2048
_CURVES: Final = {"P-256": ("ES256",), "P-384": ("ES384",)}
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


class KeySetError(ValueError):
    """A key set that cannot be used."""


@dataclass(frozen=True, slots=True, eq=False)
class VerifyKey:
    """A public key.

    Attributes:
        kid: Its id; None without one.
        algorithms: Those that it may verify.
        key: The key itself, of `cryptography`.
        identity: What makes it the same key in another set.
    """

    kid: str | None
    algorithms: tuple[str, ...]
    key: Any
    identity: bytes


def read_key_set(data: bytes) -> tuple[VerifyKey, ...]:
    """Return the usable keys of a set; those for other purposes are left out.

    Raises:
        KeySetError: It is not a key set, or too large.
    """
    if len(data) > MAX_BYTES:
        raise KeySetError(f"the key set has {len(data)} bytes; at most {MAX_BYTES} are allowed")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise KeySetError("the key set is not JSON") from None
    found = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise KeySetError("expected a JSON object with a list 'keys'")
    if len(found) > MAX_KEYS:
        raise KeySetError(f"the key set has {len(found)} keys; at most {MAX_KEYS} are allowed")
    keys = [_key(each) for each in found if isinstance(each, dict)]
    return tuple(key for key in keys if key is not None)


def _key(document: dict[str, Any]) -> VerifyKey | None:
    """Return a key; None for one that verifies no signature of ours."""
    from jwt import PyJWK  # noqa: PLC0415  # an extra
    from jwt.exceptions import PyJWTError  # noqa: PLC0415

    algorithms = _algorithms(document)
    operations = document.get("key_ops")
    is_for_signatures = document.get("use", "sig") == "sig" and (
        operations is None or (isinstance(operations, list) and "verify" in operations)
    )
    if not algorithms or not is_for_signatures:
        return None
    public = {name: value for name, value in document.items() if name in _PUBLIC}
    kid = document.get("kid")
    try:
        key: Any = PyJWK(public, algorithm=algorithms[0]).key
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    if getattr(key, "key_size", _MIN_RSA_BITS) < _MIN_RSA_BITS and algorithms[0] in _RSA:
        return None
    identity = orjson.dumps([public, sorted(algorithms)], option=orjson.OPT_SORT_KEYS)
    return VerifyKey(kid if isinstance(kid, str) else None, algorithms, key, identity)


_PUBLIC: Final = frozenset({"kty", "n", "e", "crv", "x", "y"})


def _algorithms(document: dict[str, Any]) -> tuple[str, ...]:
    """Return the algorithms that a key fits; of `alg`, if it has that, at most this one."""
    kind, curve = document.get("kty"), document.get("crv")
    found: tuple[str, ...] = ()
    if kind == "RSA":
        found = _RSA
    elif kind == "EC" and isinstance(curve, str):
        found = _CURVES.get(curve, ())
    elif kind == "OKP" and curve == "Ed25519":
        found = ("EdDSA",)
    own = document.get("alg")
    return found if own is None else tuple(each for each in found if each == own)


class KeySet:
    """The keys of one issuer.

    Args:
        on_change: Called after other keys are in force.

    Attributes:
        keys: Those in force; None before the first ones, and if they are too old.
        wanted: Set to have them fetched soon.
    """

    def __init__(self, on_change: Callable[[], object]) -> None:
        self.keys: tuple[VerifyKey, ...] | None = None
        self.wanted = asyncio.Event()
        self._on_change = on_change

    def replace(self, keys: tuple[VerifyKey, ...] | None) -> None:
        """Put other keys in force."""
        before = None if self.keys is None else [each.identity for each in self.keys]
        after = None if keys is None else [each.identity for each in keys]
        self.keys = keys
        if before != after:
            self._on_change()


Fetch = Callable[[], Awaitable[bytes]]
"""Fetches a key set. Raises GatewayError, OSError, KeySetError."""


class FetchedKeySet:
    """Fetches a key set again and again.

    Args:
        name: The name of the issuer, for the log.
        key_set: What it fills.
        fetch: Fetches the bytes.
        refresh_s: The time between two fetches.
        stale_s: How long keys are used without a fetch that succeeds.
        on_outcome: Called with whether each fetch changed the keys, or why it failed.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        key_set: KeySet,
        fetch: Fetch,
        *,
        refresh_s: float,
        stale_s: float,
        on_outcome: Callable[[str, str], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name = name
        self._set = key_set
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._stale_s = stale_s
        self._on_outcome = on_outcome
        self._clock = clock
        self._fetched_at = -math.inf
        self._reason = ""

    async def run(self) -> None:
        """Fetch until the task is cancelled."""
        while True:
            self._set.wanted.clear()
            is_fetched = await self.fetch_once()
            await asyncio.sleep(FETCH_INTERVAL_S)
            if is_fetched:
                await is_set_within(self._set.wanted, max(0.0, self._refresh_s - FETCH_INTERVAL_S))

    async def fetch_once(self) -> bool:
        """Fetch the set now; return whether that succeeded."""
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                data = await self._fetch()
            keys = read_key_set(data)
        except TimeoutError:
            self._note_failure(f"no reply within {FETCH_TIMEOUT_S:g} s")
        except (GatewayError, OSError, ValueError) as error:
            self._note_failure(str(error))
        else:
            self._fetched_at, self._reason = self._clock(), ""
            self._set.replace(keys)
            self._on_outcome(self._name, "")
            return True
        return False

    def _note_failure(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            log.error("key set not fetched", issuer=self._name, reason=reason)
        self._on_outcome(self._name, reason)
        if self._set.keys is not None and self._clock() - self._fetched_at > self._stale_s:
            log.error("key set too old", issuer=self._name)
            self._set.replace(None)
