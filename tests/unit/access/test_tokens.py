"""Tokens (JWT): right and wrong ones, the cache, and the budget of signatures."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.access.authenticator import InvalidCredential
from gateway.access.clients import Clients
from gateway.access.key_sets import KeySet, KeySetError, read_key_set
from gateway.access.tokens import MAX_TOKEN_BYTES, CheckBudget, Issuer, JwtReader
from gateway.config.access import ClientConfig, JwtConfig
from gateway.ir.errors import RateExceeded, Unavailable

NOW = 1_800_000_000.0
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
PEM = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
ISSUER = "https://login.example.com/"


def jwk(algorithm: Any, key: Any, kid: str | None, **members: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**found, **({} if kid is None else {"kid": kid}), **members}


KEYS = [
    jwk(RSAAlgorithm, RSA, "rsa", use="sig"),
    jwk(ECAlgorithm, EC, "ec", alg="ES256"),
    jwk(OKPAlgorithm, ED, "ed"),
    {"kty": "oct", "k": "c2VjcmV0", "kid": "symmetric"},
]
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


def claims(**changes: Any) -> dict[str, Any]:
    found = {
        "iss": ISSUER,
        "aud": "gateway",
        "sub": "svc-fraud",
        "exp": NOW + 600,
        "iat": NOW,
        **changes,
    }
    return {name: value for name, value in found.items() if value is not None}


def token(
    key: Any = RSA,
    algorithm: str | None = "RS256",
    kid: str | None = "rsa",
    header: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    fields = {**({} if kid is None else {"kid": kid}), **(header or {})}
    return jwt.encode(claims(**changes), key, algorithm=algorithm, headers=fields)


def part(document: Any) -> str:
    return urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def with_header(found: str, header: dict[str, Any]) -> str:
    _, rest = found.split(".", 1)
    return f"{part(header)}.{rest}"


def flipped(found: str, place: int) -> str:
    """Return a token with one bit of one part changed."""
    parts = found.split(".")
    data = bytearray(urlsafe_b64decode(parts[place] + "=="))
    data[len(data) // 2] ^= 1
    parts[place] = urlsafe_b64encode(bytes(data)).rstrip(b"=").decode()
    return ".".join(parts)


def last_bit(found: str) -> str:
    """Return a token whose last character differs in a bit that no byte has."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return found[:-1] + alphabet[alphabet.index(found[-1]) ^ 1]


RIGHT: dict[str, Callable[[], str]] = {
    "rs256": token,
    "es256": lambda: token(EC, "ES256", "ec"),
    "eddsa": lambda: token(ED, "EdDSA", "ed"),
    "one_of_several_audiences": lambda: token(aud=["other", "gateway"]),
    "pattern": lambda: token(sub="svc-f2"),
    "expired_within_the_leeway": lambda: token(exp=NOW - 29),
    "without_iat": lambda: token(iat=None),
    "without_kid_where_one_key_fits": lambda: token(EC, "ES256", None),
    "foreign_jku_is_ignored": lambda: token(header={"jku": "https://evil.example/keys"}),
    "own_jwk_is_ignored": lambda: token(header={"jwk": jwk(RSAAlgorithm, OTHER_RSA, "x")}),
}

WRONG: dict[str, tuple[Callable[[], str], str]] = {
    "expired": (lambda: token(exp=NOW - 31), "expired"),
    "without_exp": (lambda: token(exp=None), "form"),
    "exp_is_a_text": (lambda: f"{part({'alg': 'RS256'})}.{part(claims(exp='soon'))}.", "form"),
    "exp_is_a_boolean": (lambda: f"{part({'alg': 'RS256'})}.{part(claims(exp=True))}.", "form"),
    "not_yet_valid": (lambda: token(nbf=NOW + 31), "not_yet"),
    "issued_in_the_future": (lambda: token(iat=NOW + 31), "not_yet"),
    "other_audience": (lambda: token(aud="other"), "audience"),
    "no_audience": (lambda: token(aud=None), "audience"),
    "audience_is_part_of_a_word": (lambda: token(aud="gateway2"), "audience"),
    "other_issuer": (lambda: token(iss="https://evil.example/"), "issuer"),
    "no_issuer": (lambda: token(iss=None), "issuer"),
    "unknown_kid": (lambda: token(kid="unknown"), "key"),
    "kid_is_no_text": (lambda: with_header(token(), {"alg": "RS256", "kid": 5}), "key"),
    "alg_none": (
        lambda: with_header(token(), {"alg": "none"}).rsplit(".", 1)[0] + ".",
        "algorithm",
    ),
    "alg_none_in_capitals": (lambda: with_header(token(), {"alg": "NONE"}), "algorithm"),
    "alg_missing": (lambda: with_header(token(), {"kid": "rsa"}), "algorithm"),
    "alg_is_a_list": (lambda: with_header(token(), {"alg": ["RS256"]}), "algorithm"),
    "hs256_with_the_public_key": (lambda: with_hmac(), "algorithm"),  # noqa: PLW0108
    "algorithm_not_listed": (lambda: token(RSA, "RS512"), "algorithm"),
    "algorithm_of_another_key": (lambda: token(EC, "ES256", "rsa"), "algorithm"),
    "symmetric_key_of_the_set": (lambda: token("x" * 32, "HS256", "symmetric"), "algorithm"),
    "signed_by_a_foreign_key": (lambda: token(OTHER_RSA), "signature"),
    "foreign_jku": (
        lambda: token(OTHER_RSA, header={"jku": "https://evil.example/keys"}),
        "signature",
    ),
    "own_jwk": (
        lambda: token(OTHER_RSA, header={"jwk": jwk(RSAAlgorithm, OTHER_RSA, "rsa")}),
        "signature",
    ),
    "crit": (lambda: token(header={"crit": ["b64"], "b64": True}), "form"),
    "encrypted": (lambda: with_header(token(), {"alg": "RSA-OAEP", "enc": "A256GCM"}), "form"),
    "bit_of_the_header": (lambda: flipped(token(), 0), "form"),
    "bit_of_the_claims": (lambda: flipped(token(), 1), "form"),
    "bit_of_the_signature": (lambda: flipped(token(), 2), "signature"),
    "bit_beside_the_signature": (lambda: last_bit(token()), "form"),
    "signature_missing": (lambda: token().rsplit(".", 1)[0] + ".", "signature"),
    "signature_cut": (lambda: token()[:-4], "signature"),
    "no_json": (lambda: "a.b.c", "form"),
    "empty": (lambda: "..", "form"),
    "not_ascii": (lambda: "ü.ü.ü", "form"),
    "too_long": (lambda: "a." + "b" * MAX_TOKEN_BYTES + ".c", "form"),
    "no_client": (lambda: token(sub=None), "client"),
    "client_is_no_text": (lambda: token(sub=None, who=1), "client"),
    "unknown_client": (lambda: token(sub="somebody"), "unknown"),
    "disabled_client": (lambda: token(sub="svc-gone"), "disabled"),
}


def with_hmac() -> str:
    """Return a token whose HMAC has the public key, as a text, for a secret."""
    signed = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(claims())}"
    mac = hmac.new(PEM, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}"


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
