"""Tokens (JWT) that are right, and those that are wrong: each with the reason why."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.access.tokens import MAX_TOKEN_BYTES

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
