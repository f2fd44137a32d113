"""Real clients with right and wrong credentials, judged by what each of them says.

NVIDIA's client of Triton and of TensorRT v1, Oracle's client of GraphPipe, the clients of grps's samples,
and an independent client of brpc.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from gateway.access.key_file import KeyFile, new_key, save_key_file
from tests.integration.cli_kit import Running
from tests.interop.client import ROOT, SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import serving

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SUMS = [2 * value for value in range(16)]
ISSUER = "https://login.example.com/"
SIGNER = ec.generate_private_key(ec.SECP256R1())
CREDENTIALS = (
    "none",
    "unknown",
    "revoked",
    "forged",
    "right",
    "token",
    "stranger",
    "once",
    "again",
)

ENVIRONMENTS = {
    "oip.http": "client",
    "oip.grpc": "client",
    "trtis.http": "tensorrt",
    "graphpipe.http": "graphpipe",
    "grps.http": "grps",
    "grps.grpc": "grps",
    "grps.brpc": "grps",
}
# What each client shows before the text of the gateway: of 401, 403 and 429.
FORMS: Mapping[str, tuple[str, str, str]] = {
    "oip.http": ("[401] ", "[403] ", "[429] "),
    "oip.grpc": (
        "[StatusCode.UNAUTHENTICATED] ",
        "[StatusCode.PERMISSION_DENIED] ",
        "[StatusCode.RESOURCE_EXHAUSTED] ",
    ),
    "trtis.http": ("[inference:0 ", "[inference:0 ", "[inference:0 "),
    "graphpipe.http": ("401 Client Error", "Exception: b'", "429 Client Error"),
    "grps.http": ("401 ", "403 ", "429 "),
    "grps.grpc": ("StatusCode.UNAUTHENTICATED", "403 ", "StatusCode.RESOURCE_EXHAUSTED"),
    "grps.brpc": ("1004 [E1004]", "(403, '", "2004 [E2004]"),
}
TEXTS = {
    "none": "a credential is missing: expected an API key",
    "unknown": "the API key is unknown",
    "revoked": "the API key is revoked",
    "forged": "the token has a wrong signature",
    "stranger": "this client may not use this model for ",
    "again": "this client has used up the quota 'once'",
}
UNTOLD = ("401 Client Error", "429 Client Error")
"""After these Oracle's client shows its own URL instead of the text."""


@dataclass(frozen=True)
class Guarded:
    """A gateway, and what clients send to it.

    Attributes:
        credentials: By their names; "once" and "again" are those of a client for each carrier.
    """

    running: Running
    credentials: Mapping[str, str]

    def words(self, carrier: str) -> list[str]:
        """Return the arguments of the script for a carrier."""
        return [
            f"{name}={self.credentials[carrier if name in ('once', 'again') else name]}"
            for name in CREDENTIALS
        ]


def token(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a token for the client `fraud`, signed with *key*."""
    claims = {
        "iss": ISSUER,
        "aud": "gateway",
        "sub": "svc-fraud",
        "exp": time.time() + 600,  # noqa: TID251  # tokens have calendar times
    }
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": "one"})


def write_credentials(folder: Path) -> dict[str, str]:
    """Write the files of keys and of the key set; return what clients send."""
    document = {**json.loads(ECAlgorithm.to_jwk(SIGNER.public_key())), "kid": "one"}
    (folder / "keyset.json").write_text(json.dumps({"keys": [document]}))
    now = datetime.now(UTC)
    file, keys = KeyFile.new(), {}
    clients = {"right": "fraud", "revoked": "fraud", "stranger": "stranger"}
    for name in (*clients, *ENVIRONMENTS):
        keys[name] = new_key()
        client = clients.get(name, f"once-{name}")
        file = file.added(client, keys[name], now, key_id=name)
    file = file.revoked("revoked", now - timedelta(seconds=1))
    save_key_file(folder / "keys.yaml", file)
    other = ec.generate_private_key(ec.SECP256R1())
    return {
        **keys,
        "none": "",
        "unknown": new_key(),
        "forged": token(other),
        "token": token(SIGNER),
    }


CONFIG: Mapping[str, Any] = {
    "version": 1,
    "clients": {"fraud": {"subjects": {"corp": "svc-fraud"}}},
    "security": {
        "keys": {"file": "keys.yaml"},
        "jwt": [{"name": "corp", "issuer": ISSUER, "audience": "gateway", "jwks": "keyset.json"}],
        "rules": [
            {"clients": ["fraud", "once-*"], "operations": ["all"], "models": ["add_sub"]},
            {"clients": ["anonymous"], "operations": ["all"], "models": ["add_sub"]},
        ],
    },
    "quotas": {"once": {"match": {"clients": ["once-*"]}, "limit": "1/month"}},
    "listeners": [
        {
            "name": "main",
            "http": "127.0.0.1:0",
            "grpc": "127.0.0.1:0",
            "streams": [{"protocol": "grps", "address": "127.0.0.1:0"}],
        },
        {"name": "open", "grpc": "127.0.0.1:0", "authentication": "off"},
    ],
    "models": {
        name: {"backend": "python", "options": {"callable": "gateway.backends.examples:simple"}}
        for name in ("add_sub", "hidden")
    },
    "admin": {"address": None, "metrics": None},
    "lifecycle": {"pre_stop": "0s"},
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Run a gateway with keys, tokens, rules and a quota."""
    folder = tmp_path_factory.mktemp("access")
    credentials = write_credentials(folder)
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(CONFIG))
    with serving(str(file)) as running:
        yield Guarded(running, credentials)


def seen_by(guarded: Guarded, carrier: str, listener: str, *words: str) -> dict[str, Any]:
    """Return what the client of a carrier sees with each credential."""
    kind = carrier.rpartition(".")[2]
    port = f"{listener}.grps.brpc" if kind == "brpc" else f"{listener}.{kind}"
    client = Client(environment(ENVIRONMENTS.get(carrier, "tensorrt")))
    schemas = str(ROOT / "schemas" / "grps")
    address = guarded.running.addresses[port]
    found: dict[str, Any] = client.run(
        SCRIPTS / "access_clients.py", carrier, address, schemas, *words
    )
    return found


@pytest.mark.parametrize("carrier", ENVIRONMENTS)
def test_right_credentials_are_served_and_wrong_ones_named(guarded: Guarded, carrier: str) -> None:
    """A key and a token get results; each other credential gets its text in the client's form."""
    seen = seen_by(guarded, carrier, "main", *guarded.words(carrier))
    assert dict.fromkeys(("right", "token", "once"), SUMS) == {
        name: seen.pop(name) for name in ("right", "token", "once")
    }
    assert seen.keys() == TEXTS.keys()
    unauthenticated, denied, limited = FORMS[carrier]
    for name, text in seen.items():
        form = {"stranger": denied, "again": limited}.get(name, unauthenticated)
        assert form in text, name
        assert form in UNTOLD or TEXTS[name] in text, name
    if carrier == "grps.brpc":  # what is not authenticated ends the connection
        ends = {name: text.rpartition("; ")[2] for name, text in seen.items()}
        assert ends == {**dict.fromkeys(TEXTS, "closed"), "stranger": "open", "again": "open"}


def test_a_client_without_credentials_needs_an_open_listener(guarded: Guarded) -> None:
    """The client of TensorRT v1 over gRPC sends none: a rule for `anonymous` serves it."""
    [refused] = seen_by(guarded, "trtis.grpc", "main", "none=").values()
    assert TEXTS["none"] in refused
    assert {"none": SUMS} == seen_by(guarded, "trtis.grpc", "open", "none=")
