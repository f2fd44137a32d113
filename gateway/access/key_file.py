"""The file of hashed API keys: read, looked up, changed by `gateway keys`.

The file has no key, but SHA-256 of a salt and each key. Keys are long and random, so that a slow
hash would protect nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from gateway.config.yaml_tree import read_tree
from gateway.settings.fields import CLIENT_NAME
from gateway.settings.private_files import replace_kept

PREFIX: Final = "tg_"
MIN_IMPORTED: Final = 20
MAX_KEY: Final = 8192
"""The longest credential that is hashed."""

_SALT_BYTES: Final = 16
_HASH: Final = re.compile("[0-9a-f]{64}")
_SALT: Final = re.compile("[0-9a-f]{32}")
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_IMPORTED: Final = re.compile(r"[!-~]{20,8192}")
_YAML_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_TIMES: Final = ("created", "expires", "revoked")
_FIELDS: Final = ("id", "client", "hash", *_TIMES, "note")

State = Literal["active", "expired", "revoked"]


class KeyFileError(ValueError):
    """A key file that cannot be used."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An entry of the file.

    Attributes:
        digest: SHA-256 of the salt and the key.
        expires: When it ends; None if it does not.
        revoked: When it was revoked; None if it was not.
    """

    id: str
    client: str
    digest: bytes
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None
    note: str = ""

    def state(self, now: datetime) -> State:
        """Return whether it can be used."""
        if self.revoked is not None and self.revoked <= now:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


class KeyFile:
    """The content of a key file.

    Args:
        salt: Hashed before each key.
        keys: The entries in their order.
    """

    def __init__(self, salt: bytes, keys: tuple[ApiKey, ...] = ()) -> None:
        self.salt = salt
        self.keys = keys
        self._by_digest = {each.digest: each for each in keys}

    @classmethod
    def new(cls) -> KeyFile:
        """Return a file without keys, with a random salt."""
        return cls(secrets.token_bytes(_SALT_BYTES))

    def find(self, key: str) -> ApiKey | None:
        """Return the entry of *key*, whatever its state; None without one."""
        if len(key) > MAX_KEY:
            return None
        return self._by_digest.get(self.digest(key))

    def digest(self, key: str) -> bytes:
        """Return the hash of *key*."""
        return hashlib.sha256(self.salt + key.encode("utf-8", "surrogateescape")).digest()

    def added(
        self,
        client: str,
        key: str,
        now: datetime,
        *,
        key_id: str = "",
        expires: datetime | None = None,
        note: str = "",
    ) -> KeyFile:
        """Return the file with one key more.

        Raises:
            KeyFileError: The client, the key or the id is invalid or taken.
        """
        if re.fullmatch(CLIENT_NAME, client) is None or client == "anonymous":
            raise KeyFileError(
                f"client is {client!r}: expected 1 to 64 letters, digits, '.', '_' and '-', and "
                "not 'anonymous'"
            )
        if _IMPORTED.fullmatch(key) is None:
            raise KeyFileError(f"a key needs at least {MIN_IMPORTED} visible ASCII characters")
        used_ids = {each.id for each in self.keys}
        if key_id in used_ids:
            raise KeyFileError(f"id {key_id!r} is taken; expected another one")
        if key_id and _ID.fullmatch(key_id) is None:
            raise KeyFileError(f"id is {key_id!r}: expected letters, digits, '.', '_' and '-'")
        digest = self.digest(key)
        if digest in self._by_digest:
            raise KeyFileError("the file has this key already")
        entry = ApiKey(key_id or _free_id(used_ids), client, digest, now, expires, None, note)
        return KeyFile(self.salt, (*self.keys, entry))

    def revoked(self, key_id: str, now: datetime) -> KeyFile:
        """Return the file after the key *key_id* is revoked. Raises KeyFileError without one."""
        if all(each.id != key_id for each in self.keys):
            known = ", ".join(each.id for each in self.keys) or "none"
            raise KeyFileError(f"no key has the id {key_id!r}; the file has {known}")
        changes = {
            each.id: {"revoked": now}
            for each in self.keys
            if each.id == key_id and (each.revoked is None or each.revoked > now)
        }
        return self._changed(changes)

    def expiring(self, client: str, end: datetime) -> KeyFile:
        """Return the file with the keys of *client* ending at *end* at the latest."""
        return self._changed(
            {
                each.id: {"expires": end}
                for each in self.keys
                if each.client == client and (each.expires is None or each.expires > end)
            }
        )

    def _changed(self, changes: Mapping[str, Mapping[str, Any]]) -> KeyFile:
        return KeyFile(
            self.salt, tuple(replace(each, **changes.get(each.id, {})) for each in self.keys)
        )

    def text(self) -> str:
        """Return the file as YAML."""
        lines = ["version: 1", f"salt: {self.salt.hex()}", "keys:" if self.keys else "keys: []"]
        lines += [f"  - {{{', '.join(_members(each))}}}" for each in self.keys]
        return "\n".join(lines) + "\n"


def new_key() -> str:
    """Return a random key: `tg_` and 43 characters."""
    return PREFIX + secrets.token_urlsafe(32)


def read_key_file(data: bytes) -> KeyFile:
    """Read the content of a key file.

    Raises:
        KeyFileError: It is not one. The text has no value of the file.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise KeyFileError("the file is not UTF-8") from None
    tree = read_tree(text, {}, Path())
    if tree.problems:
        raise KeyFileError(f"{tree.problems[0].position[0]}: the file is not valid YAML")
    document = tree.value
    if not isinstance(document, dict) or str(document.get("version")) != "1":
        raise KeyFileError("expected a mapping that begins with 'version: 1'")
    unknown = document.keys() - {"version", "salt", "keys"}
    if unknown:
        raise KeyFileError(f"unknown key {min(unknown)!r}; expected version, salt and keys")
    salt = document.get("salt")
    if not isinstance(salt, str) or _SALT.fullmatch(salt) is None:
        raise KeyFileError("'salt': expected 16 bytes in hexadecimal digits")
    entries = document.get("keys") or []
    if not isinstance(entries, list):
        raise KeyFileError("'keys': expected a list")
    keys = tuple(_entry(index, each) for index, each in enumerate(entries))
    for name, values in (("id", [each.id for each in keys]), ("hash", [k.digest for k in keys])):
        if len(set(values)) < len(values):
            raise KeyFileError(f"'keys': two entries have the same {name}")
    return KeyFile(bytes.fromhex(salt), keys)


def load_key_file(path: Path) -> KeyFile:
    """Read a key file. Raises OSError and KeyFileError."""
    return read_key_file(path.read_bytes())


def save_key_file(path: Path, keys: KeyFile) -> None:
    """Replace *path* in one step; whoever could read it still can. Raises OSError."""
    replace_kept(path, keys.text().encode())


def _entry(index: int, found: Any) -> ApiKey:
    at = f"'keys[{index}]'"
    if not isinstance(found, dict):
        raise KeyFileError(f"{at}: expected a mapping")
    unknown = found.keys() - set(_FIELDS)
    if unknown:
        raise KeyFileError(f"{at}: unknown key {min(unknown)!r}; expected {', '.join(_FIELDS)}")
    texts = {key: value for key, value in found.items() if isinstance(value, str)}
    for key, pattern in (("id", _ID), ("client", re.compile(CLIENT_NAME)), ("hash", _HASH)):
        if pattern.fullmatch(texts.get(key, "")) is None:
            raise KeyFileError(f"{at}: {key!r} is missing or invalid")
    if texts["client"] == "anonymous":
        raise KeyFileError(f"{at}: 'client' is 'anonymous', which is reserved")
    times = {key: _time(at, key, found.get(key)) for key in _TIMES}
    created = times["created"]
    if created is None:
        raise KeyFileError(f"{at}: 'created' is missing")
    return ApiKey(
        texts["id"],
        texts["client"],
        bytes.fromhex(texts["hash"]),
        created,
        times["expires"],
        times["revoked"],
        texts.get("note", ""),
    )


def _time(at: str, key: str, value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise KeyFileError(f"{at}: {key!r} is no time; expected 2026-11-25T10:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _members(key: ApiKey) -> Iterator[str]:
    yield f"id: {_quoted(key.id)}"
    yield f"client: {_quoted(key.client)}"
    yield f"hash: {_quoted(key.digest.hex())}"
    for name in _TIMES:
        value = getattr(key, name)
        if value is not None:
            yield f"{name}: {time_text(value)}"
    if key.note:
        yield f"note: {_quoted(key.note)}"


def time_text(value: datetime) -> str:
    """Return a time as the file has it, in UTC and whole seconds."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _quoted(text: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", text) is not None
    return text if is_plain and text.lower() not in _YAML_WORDS else json.dumps(text)


def _free_id(used_ids: set[str]) -> str:
    number = 1
    while f"k{number}" in used_ids:
        number += 1
    return f"k{number}"
