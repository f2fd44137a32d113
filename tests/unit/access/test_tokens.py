"""Tokens (JWT): right and wrong ones, the cache, and the budget of signatures."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.access.authenticator import InvalidCredential
from gateway.access.clients import Clients
from gateway.access.key_sets import KeySet, KeySetError, read_key_set
from gateway.access.tokens import CheckBudget, Issuer, JwtReader
from gateway.config.access import ClientConfig, JwtConfig
from gateway.ir.errors import RateExceeded, Unavailable
from tests.cases.tokens import (
    EC,
    ED,
    ISSUER,
    KEYS,
    NOW,
    OTHER_RSA,
    RIGHT,
    RSA,
    WRONG,
    claims,
    jwk,
    token,
)

CLIENTS = Clients(
    {
        "fraud": ClientConfig(groups=("finance",), subjects={"corp": ("svc-fraud", "svc-f*")}),
        "gone": ClientConfig(enabled=False, subjects={"corp": ("svc-gone",)}),
    }
)


def config(**changes: Any) -> JwtConfig:
    fields = {"name": "corp", "issuer": ISSUER, "audience": ["gateway"], "jwks": "k.json"}
    return JwtConfig.model_validate({**fields, **changes})


class Setup:
    """A reader of one issuer, with a clock."""

    def __init__(self, rate: float = 1000, **changes: Any) -> None:
        self.now = NOW
        self.monotonic = 0.0
        self.key_set = KeySet(lambda: None)
        self.key_set.keys = read_key_set(json.dumps({"keys": KEYS}).encode())
        self.issuer = Issuer(config(**changes), self.key_set)
        budget = CheckBudget(rate, lambda: self.monotonic)
        self.reader = JwtReader([self.issuer], budget, lambda: self.now)

    def identity(self, token: str, address: str = "1.2.3.4") -> Any:
        return self.reader.identity(token, address, CLIENTS)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_token_names_its_client(name: str) -> None:
    """Groups are those of the client, and the claims are kept."""
    identity = Setup().identity(RIGHT[name]())
    assert identity.name == "fraud"
    assert identity.groups == {"finance"}
    assert identity.claims["iss"] == ISSUER
    assert identity.credential == "corp"


UP_TO_THE_BYTES = {"bit_of_the_header", "bit_of_the_claims", "signature_cut"}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_token_is_refused(name: str) -> None:
    """The text tells why, and has no value of the token."""
    make, reason = WRONG[name]
    found = make()
    with pytest.raises(InvalidCredential) as caught:
        Setup().identity(found)
    error = caught.value
    assert (error.kind, error.was_sent) == ("jwt", True)
    if name not in UP_TO_THE_BYTES:
        assert error.reason == reason
    for value in ("svc-", "evil", "login.example", "unknown-kid"):
        assert value not in error.message


def test_two_keys_fit_a_token_without_kid() -> None:
    """It is refused: exactly one key must fit."""
    setup = Setup()
    keys = [*KEYS, jwk(RSAAlgorithm, OTHER_RSA, "rsa2")]
    setup.key_set.replace(read_key_set(json.dumps({"keys": keys}).encode()))
    with pytest.raises(InvalidCredential, match="2 keys fit"):
        setup.identity(token(kid=None))


def test_a_key_with_another_alg_or_use_does_not_fit() -> None:
    """Nor does a short RSA key."""
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505  # the point
    documents = [
        jwk(RSAAlgorithm, RSA, "rsa", alg="PS256"),
        jwk(ECAlgorithm, EC, "ec", use="enc"),
        jwk(OKPAlgorithm, ED, "ed", key_ops=["sign"]),
        jwk(RSAAlgorithm, short, "short"),
    ]
    found = read_key_set(json.dumps({"keys": documents}).encode())
    assert [(each.kid, each.algorithms) for each in found] == [("rsa", ("PS256",))]


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"keys": 1}', b'{"keys": [' + b"1," * 100 + b"1]}", b" " * (1 << 20) + b"{}"],
)
def test_a_broken_key_set_is_an_error(data: bytes) -> None:
    """As is one of more than 100 keys or 1 MiB."""
    with pytest.raises(KeySetError):
        read_key_set(data)


def test_tokens_of_a_key_end_when_it_leaves_the_set() -> None:
    """Those of keys that stay go on without another check of their signatures."""
    setup = Setup(rate=2)
    leaving, staying = token(), token(EC, "ES256", "ec")
    setup.identity(leaving)
    setup.identity(staying)
    setup.key_set.replace(read_key_set(json.dumps({"keys": KEYS[1:]}).encode()))
    assert setup.identity(staying).name == "fraud"
    with pytest.raises(InvalidCredential, match="unknown key"):
        setup.identity(leaving)


def test_an_unknown_kid_requests_a_fetch() -> None:
    """And tokens before the first set are for later."""
    setup = Setup()
    with pytest.raises(InvalidCredential):
        setup.identity(token(kid="new"))
    assert setup.key_set.wanted.is_set()
    setup.key_set.keys = None
    with pytest.raises(Unavailable):
        setup.identity(token())


def test_new_tokens_have_a_budget_for_each_address() -> None:
    """Verified tokens need none, and an address above its limit leaves the others theirs."""
    setup = Setup(rate=2)
    first = token()
    setup.identity(first)
    for number in range(20):
        with pytest.raises((RateExceeded, InvalidCredential)):
            setup.identity(token(OTHER_RSA, jti=str(number)))
    with pytest.raises(RateExceeded) as caught:
        setup.identity(token(jti="new"))
    assert caught.value.retry_after_s == 1.0
    assert setup.identity(first).name == "fraud"
    assert setup.identity(token(jti="new"), "5.6.7.8").name == "fraud"
    setup.monotonic += 1
    assert setup.identity(token(jti="new2")).name == "fraud"


def test_wrong_tokens_take_no_place_in_the_cache() -> None:
    """However many there are."""
    setup = Setup()
    setup.identity(token())
    for number in range(50):
        with pytest.raises(InvalidCredential):
            setup.identity(token(OTHER_RSA, jti=str(number)))
    assert len(setup.reader._verified) == 1


def test_a_verified_token_ends() -> None:
    """At its time and the leeway."""
    setup = Setup()
    found = token()
    assert setup.identity(found).expires == NOW + 630
    setup.now = NOW + 629
    setup.identity(found)
    setup.now = NOW + 630
    with pytest.raises(InvalidCredential, match="has expired"):
        setup.identity(found)


def test_claims_by_name_and_by_pointer() -> None:
    """Groups are added to those of the client, and `unlisted` names it by the issuer."""
    setup = Setup(client="/kubernetes.io/serviceaccount/name", groups="roles", unlisted="accept")
    with pytest.raises(InvalidCredential):
        setup.identity(token())
    setup = Setup(client="/kubernetes.io/name", groups="roles", unlisted="accept")
    identity = setup.identity(
        jwt.encode(
            claims() | {"kubernetes.io": {"name": "svc-fraud"}, "roles": ["a", 1, "b"]},
            RSA,
            algorithm="RS256",
            headers={"kid": "rsa"},
        )
    )
    assert (identity.name, identity.groups) == ("fraud", {"finance", "a", "b"})
    other = jwt.encode(
        claims() | {"kubernetes.io": {"name": "else"}},
        RSA,
        algorithm="RS256",
        headers={"kid": "rsa"},
    )
    assert setup.identity(other).name == "corp:else"
