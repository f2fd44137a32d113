"""What `security.strict` forbids, by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.check.check import check
from gateway.config.load import load_text

TLS = "tls: {cert: cert.pem, key: key.pem}"
SAFE = f"""version: 1
listeners:
  - {{name: main, http: "0.0.0.0:8000", {TLS}}}
  - {{name: own, http: 8010, authentication: off}}
admin:
  address: 0.0.0.0:9901
  metrics: 0.0.0.0:8002
  {TLS}
  tokens: [{{name: ops, roles: [read], file: ops.token}}]
security:
  strict: true
  keys: {{file: keys.yaml}}
upstreams:
  up: {{url: "https://h:8000", tls: {{cert: cert.pem, key: key.pem}}, headers: {{a: "${{file:up.key}}"}}}}
"""
FILES = ("cert.pem", "key.pem", "ops.token", "keys.yaml", "up.key")


def findings(folder: Path, old: str = "", new: str = "") -> list[tuple[str, int]]:
    for name in FILES:
        if not (folder / name).exists():
            (folder / name).write_text("content")
            (folder / name).chmod(0o644 if name == "cert.pem" else 0o640)
    assert old in SAFE
    text = SAFE.replace(old, new) if old else SAFE
    return [(each.path, each.position[0]) for each in check(load_text(text, directory=folder))]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        (f'8000", {TLS}', '8000"', [("listeners[0].http", 3)]),
        ("name: main,", "name: main, authentication: off,", [("listeners[0].authentication", 3)]),
        ("name: main,", "name: main, authentication: optional,", []),
        ("  keys: {file: keys.yaml}\n", "", [("listeners[0].authentication", 3)]),
        ("name: main,", "name: main, shared_memory: map,", [("listeners[0].http", 3)]),
        (f"  {TLS}\n  tokens", "  tokens", [("admin.address", 6), ("admin.metrics", 7)]),
        (
            "tokens: [{name: ops, roles: [read], file: ops.token}]",
            "hosts: []",
            [("admin.address", 6), ("admin.metrics", 7)],
        ),
        ("metrics: 0.0.0.0:8002", "metrics: 127.0.0.1:8002", []),
        ("tls: {cert: cert.pem, key: key.pem}, headers", "tls: {verify: false}, headers", [("upstreams.up.tls.verify", 14)]),
    ],
)  # fmt: skip
def test_each_risk_is_found_at_its_line(
    tmp_path: Path, old: str, new: str, expected: list[tuple[str, int]]
) -> None:
    """Each is allowed without `strict`."""
    assert expected == findings(tmp_path, old, new)
    text = SAFE.replace(old, new) if old else SAFE
    assert [] == check(load_text(text.replace("strict: true", "strict: false"), directory=tmp_path))


def test_a_mutual_tls_of_all_clients_needs_no_other_credential(tmp_path: Path) -> None:
    """Nobody without a certificate of the authorities connects; `off` in the file is refused."""
    (tmp_path / "ca.pem").write_text("")
    findings(tmp_path)  # writes the files
    text = SAFE.replace("  keys: {file: keys.yaml}\n", "")
    mutual = text.replace(f'8000", {TLS}', f'8000", {TLS[:-1]}, ca: ca.pem}}')
    found = [each.path for each in check(load_text(mutual, directory=tmp_path))]
    assert [] == found
    off = mutual.replace("name: main,", "name: main, authentication: off,")
    found = [each.path for each in check(load_text(off, directory=tmp_path))]
    assert ["listeners[0].authentication"] == found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("key.pem", {"listeners[0].tls.key", "admin.tls.key", "upstreams.up.tls.key"}),
        ("ops.token", {"admin.tokens[0].file"}),
        ("keys.yaml", {"security.keys.file"}),
        ("up.key", {"upstreams.up.headers.a"}),
    ],
)
def test_files_of_secrets_that_others_read_are_found(
    tmp_path: Path, name: str, expected: set[str]
) -> None:
    """A link counts as the file that it leads to."""
    assert [] == findings(tmp_path)
    (tmp_path / name).rename(tmp_path / "real")
    (tmp_path / name).symlink_to("real")
    assert [] == findings(tmp_path)
    (tmp_path / "real").chmod(0o644)
    assert expected == {path for path, _ in findings(tmp_path)}
