"""The file of hashed API keys."""

from __future__ import annotations

import hashlib
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.access.key_file import (
    KeyFile,
    KeyFileError,
    load_key_file,
    new_key,
    read_key_file,
    save_key_file,
)

NOW = datetime(2026, 11, 26, 10, tzinfo=UTC)
SALT = "9f86d081884c7d659a2feaa0c55ad015"
KEY = "tg_0123456789abcdefghijklmnopqrstuvwxyzABCD"


def with_entry(entry: str) -> str:
    return f"version: 1\nsalt: {SALT}\nkeys:\n  - {entry}\n"


def test_a_hash_is_sha256_of_the_salt_and_the_key() -> None:
    """An operator can compute it with other tools."""
    expected = hashlib.sha256(bytes.fromhex(SALT) + b"a").digest()
    assert KeyFile(bytes.fromhex(SALT)).digest("a") == expected


def test_a_saved_file_reads_back(tmp_path: Path) -> None:
    """Whatever the note and the names contain."""
    path = tmp_path / "keys.yaml"
    file = KeyFile.new().added(
        "null", KEY, NOW, key_id="1", expires=NOW + timedelta(days=1), note='a: "b"\n# ü'
    )
    file = file.added("fraud", new_key(), NOW).revoked("k1", NOW)
    save_key_file(path, file)
    found = load_key_file(path)
    assert found.keys == file.keys
    assert found.salt == file.salt
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KEY not in path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file is not valid YAML"),
        ("[1]", "expected a mapping that begins with 'version: 1'"),
        ("version: 2", "expected a mapping that begins with 'version: 1'"),
        ("version: 1\nsalt: abc", "'salt': expected 16 bytes in hexadecimal digits"),
        (f"version: 1\nsalt: {SALT}\nother: 1", "unknown key 'other'; expected version"),
        (f"version: 1\nsalt: {SALT}\nkeys: 1", "'keys': expected a list"),
        (with_entry("{id: k}"), "'keys[0]': 'client' is missing or invalid"),
        (with_entry("{id: k, client: a, hash: 12}"), "'keys[0]': 'hash' is missing or invalid"),
        (
            with_entry(f"{{id: k, client: a, hash: '{'0' * 64}'}}"),
            "'keys[0]': 'created' is missing",
        ),
        (
            with_entry(f"{{id: k, client: a, hash: '{'0' * 64}', created: soon}}"),
            "'keys[0]': 'created' is no time",
        ),
        (
            with_entry(f"{{id: k, client: anonymous, hash: '{'0' * 64}', created: 2026-01-01}}"),
            "'keys[0]': 'client' is 'anonymous', which is reserved",
        ),
        (with_entry("{id: k, expire: 1}"), "'keys[0]': unknown key 'expire'"),
    ],
)
def test_a_broken_file_names_the_entry(text: str, message: str) -> None:
    """The error has no value of the file."""
    with pytest.raises(KeyFileError) as caught:
        read_key_file(text.encode())
    assert str(caught.value).startswith(message)


def test_two_entries_of_one_id_are_an_error() -> None:
    """An id names one key."""
    entry = f"{{id: k, client: a, hash: '{'0' * 64}', created: 2026-01-01}}"
    with pytest.raises(KeyFileError, match="two entries have the same id"):
        read_key_file((with_entry(entry) + f"  - {entry.replace('0' * 64, '1' * 64)}\n").encode())


def test_states_follow_the_clock() -> None:
    """A revoked key stays revoked, and an expired one is no longer active."""
    file = KeyFile.new().added("a", KEY, NOW, expires=NOW + timedelta(hours=1))
    entry = file.find(KEY)
    assert entry is not None
    assert entry.state(NOW) == "active"
    assert entry.state(NOW + timedelta(hours=1)) == "expired"
    (revoked,) = file.revoked("k1", NOW).keys
    assert revoked.state(NOW) == "revoked"


def test_rotation_ends_all_other_keys_of_the_client() -> None:
    """Keys that end sooner keep their end, and those of other clients are unchanged."""
    soon, end = NOW + timedelta(hours=1), NOW + timedelta(days=7)
    file = (
        KeyFile.new()
        .added("a", new_key(), NOW, expires=soon)
        .added("a", new_key(), NOW)
        .added("b", new_key(), NOW)
    )
    assert [each.expires for each in file.expiring("a", end).keys] == [soon, end, None]


@pytest.mark.parametrize("key", ["short", "x" * 19, "with space in the middle", "ümlaut" * 5])
def test_a_weak_key_is_not_imported(key: str) -> None:
    """Imported keys have 20 visible ASCII characters or more."""
    with pytest.raises(KeyFileError, match="at least 20"):
        KeyFile.new().added("a", key, NOW)


def test_new_keys_differ_and_have_the_prefix() -> None:
    """At least 32 random characters follow it."""
    first, second = new_key(), new_key()
    assert first != second
    assert first.startswith("tg_")
    assert len(first) >= 35


def test_unknown_and_oversized_values_find_nothing() -> None:
    """A value above 8 KiB is not hashed."""
    file = KeyFile.new().added("a", KEY, NOW)
    assert file.find(KEY) is not None
    assert file.find(KEY[:-1]) is None
    assert file.find(KEY + "\udc80") is None
    assert file.find("x" * 10_000) is None
