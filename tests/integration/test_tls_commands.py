"""TLS on the command line: URLs, flags of the commands that call a server, and the admin port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.integration.cli_kit import Running, gateway, serving
from tests.integration.tls_kit import write_authorities, write_pair

CONFIG = """
version: 1
listeners:
  - http: "127.0.0.1:0"
    grpc: "127.0.0.1:0"
    default_model: simple
    options: {oip: {repository_index: true}}
    streams:
      - {protocol: graphpipe, address: "127.0.0.1:0"}
      - {protocol: grps, address: "127.0.0.1:0"}
    tls: {cert: server.pem, key: server.key, ca: clients.pem, client_certificates: optional}
admin: {address: "127.0.0.1:0", metrics: null, tls: {cert: server.pem, key: server.key}}
lifecycle: {pre_stop: 0s, drain: 1s}
models:
  simple: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
routes:
  - {match: {model: guarded, headers: {x-key: secret}}, targets: [{model: simple}]}
  - {match: {model: simple}, targets: [{model: simple}]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a server and of a client, each with its authority."""
    found = tmp_path_factory.mktemp("tls")
    authority, clients = trustme.CA(), trustme.CA()
    write_pair(found, authority)
    write_pair(found, clients, "client.example", stem="client")
    write_authorities(found / "authority.pem", authority)
    write_authorities(found / "clients.pem", clients)
    (found / "key.txt").write_text("secret\n")
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """A server that has TLS on every port."""
    (folder / "gateway.yaml").write_text(CONFIG)
    with serving(str(folder / "gateway.yaml")) as running:
        yield running


URLS = [
    ("https", "main.http"),
    ("oip+https", "main.http"),
    ("grpcs", "main.grpc"),
    ("oip+grpcs", "main.grpc"),
    ("trtis+https", "main.http"),
    ("trtis+grpcs", "main.grpc"),
    ("graphpipe+https", "main.http"),
    ("graphpipe+tls", "main.graphpipe.tcp"),
    ("grps+https", "main.http"),
    ("grps+grpcs", "main.grpc"),
    ("grps+brpcs", "main.grps.brpc"),
]


@pytest.mark.parametrize(("scheme", "name"), URLS)
def test_every_scheme_with_tls_is_understood(
    scheme: str, name: str, server: Running, folder: Path
) -> None:
    """The server is ready with its authority; without it, the error names the certificate."""
    port = server.addresses[name].rpartition(":")[2]
    url = f"{scheme}://localhost:{port}"
    done = gateway("health", url, "--tls-ca", str(folder / "authority.pem"))
    assert 0 == done.returncode, done.stderr
    refused = gateway("health", url)
    assert 1 == refused.returncode
    assert "certificate verify failed" in refused.stderr + refused.stdout or (
        "not ready" in refused.stdout
    )


def test_flags_of_a_call(server: Running, folder: Path) -> None:
    """A client certificate, any certificate, and headers of the command line and of a file."""
    url = f"https://localhost:{server.addresses['main.http'].rpartition(':')[2]}"
    trusted = ("--tls-ca", str(folder / "authority.pem"))
    own = ("--tls-cert", str(folder / "client.pem"), "--tls-key", str(folder / "client.key"))
    assert 0 == gateway("models", url, *trusted, *own).returncode
    assert 0 == gateway("models", url, "--insecure").returncode
    missing = gateway("models", url, *trusted, "--tls-cert", str(folder / "client.pem"))
    assert (2, True) == (missing.returncode, "--tls-key is missing" in missing.stderr)
    absent = gateway("models", url, "--tls-ca", str(folder / "none.pem"))
    assert (2, True) == (absent.returncode, f"cannot read {folder / 'none.pem'}" in absent.stderr)
    data = json.dumps([list(range(16))])
    infer = ("infer", url, "guarded", "-i", f"INPUT0={data}", "-i", f"INPUT1={data}", *trusted)
    types = ("--datatype", "INPUT0=INT32", "--datatype", "INPUT1=INT32")
    assert 1 == gateway(*infer, *types).returncode
    for header in ("x-key=secret", f"x-key=@{folder / 'key.txt'}"):
        done = gateway(*infer, *types, "--header", header)
        assert 0 == done.returncode, done.stderr


def test_a_sidecar_with_tls_on_both_sides(server: Running, folder: Path) -> None:
    """`serve --upstream https://` has the flags of its listeners, and of its upstream."""
    url = f"https://localhost:{server.addresses['main.http'].rpartition(':')[2]}"
    flags = (
        *("--upstream", url, "--upstream-tls-ca", str(folder / "authority.pem")),
        *("--upstream-tls-cert", str(folder / "client.pem")),
        *("--upstream-tls-key", str(folder / "client.key")),
        *("--upstream-header", f"x-key=@{folder / 'key.txt'}"),
        *("--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key")),
        *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
    )
    data = json.dumps([list(range(16))])
    inputs = ("-i", f"INPUT0={data}", "-i", f"INPUT1={data}")
    types = ("--datatype", "INPUT0=INT32", "--datatype", "INPUT1=INT32")
    with serving(*flags) as sidecar:
        for scheme, name in (("https", "main.http"), ("grpcs", "main.grpc")):
            own = f"{scheme}://localhost:{sidecar.addresses[name].rpartition(':')[2]}"
            trusted = ("--tls-ca", str(folder / "authority.pem"))
            done = gateway("infer", own, "guarded", *inputs, *types, *trusted)
            assert 0 == done.returncode, done.stderr
        shown = gateway("status", sidecar.addresses["admin"])
    assert 0 == shown.returncode, shown.stderr
    assert "secret" not in "".join(sidecar.log)


def test_flags_of_tls_are_refused_beside_a_file(folder: Path) -> None:
    """The file decides there."""
    done = gateway("serve", str(folder / "gateway.yaml"), "--tls-cert", str(folder / "server.pem"))
    assert (2, True) == (done.returncode, "--tls-cert is not allowed with" in done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["status", "ADDR"],
        ["status", "--admin", "ADDR"],
        ["reload", "ADDR"],
        ["reload", "--admin", "ADDR"],
        ["top", "ADDR", "--count", "1", "--interval", "0.1"],
        ["top", "--admin", "ADDR", "--count", "1", "--interval", "0.1"],
        ["residency", "ADDR"],
        ["residency", "--admin", "ADDR"],
        ["health", "--live", "ADDR"],
        ["health", "--live", "--admin", "ADDR"],
    ],
)
def test_admin_address_with_tls(words: list[str], server: Running, folder: Path) -> None:
    """Each command takes the address as an argument and as a flag, with `https://`."""
    address = f"https://localhost:{server.addresses['admin'].rpartition(':')[2]}"
    words = [address if word == "ADDR" else word for word in words]
    done = gateway(*words, "--tls-ca", str(folder / "authority.pem"))
    assert 0 == done.returncode, done.stderr
    assert 1 == gateway(*words).returncode
    plain = [server.addresses["admin"] if word == address else word for word in words]
    assert 1 == gateway(*plain).returncode  # without TLS


@pytest.mark.parametrize("words", [["status"], ["residency", "pin", "m"], ["health", "--live"]])
def test_two_admin_addresses_are_refused(words: list[str]) -> None:
    """One of them must be wrong."""
    done = gateway(*words, "127.0.0.1:1", "--admin", "127.0.0.1:2")
    assert (2, True) == (done.returncode, "two admin addresses" in done.stderr)


@pytest.mark.parametrize("words", [["pin"], ["pim", "m"], ["m"], ["pin", "m", "n"]])
def test_residency_names_what_it_expects(words: list[str]) -> None:
    """Nothing is sent."""
    done = gateway("residency", *words, "127.0.0.1:1")
    assert (2, True) == (done.returncode, "one of pin, unpin, evict and the name" in done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["route", "weights", "r", "a=1", "127.0.0.1:1"],
        ["route", "reset", "r", "127.0.0.1:1"],
        ["upstream", "drain", "u", "127.0.0.1:1"],
        ["residency", "127.0.0.1:1"],
        ["residency", "pin", "m", "127.0.0.1:1"],
        ["health", "--live", "127.0.0.1:1"],
        ["status", "127.0.0.1:1"],
        ["reload", "127.0.0.1:1"],
        ["top", "127.0.0.1:1"],
    ],
)
def test_commands_take_the_address_as_an_argument(words: list[str]) -> None:
    """Nothing listens at port 1, which the error names; so does `--admin`."""
    check_address(words)


def check_address(words: list[str]) -> None:
    """Check that a command takes its last word as an address, with and without `--admin`."""
    flagged = [*words[:-1], "--admin", words[-1]]
    for each in (words, flagged):
        done = gateway(*each)
        assert 1 == done.returncode
        assert "no admin port of a gateway at 127.0.0.1:1" in done.stderr
