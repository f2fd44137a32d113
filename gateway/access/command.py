"""The commands `keys`, which change the file of hashed API keys.

A changed file is not yet a change: a running gateway reads it. So each command asks that gateway
whether the new content is in force.
"""

import fcntl
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.access.key_file import (
    ApiKey,
    KeyFile,
    KeyFileError,
    load_key_file,
    new_key,
    save_key_file,
    time_text,
)
from gateway.cli.admin import AdminAddress, AdminError, admin_of, ask_status, asks_admin
from gateway.cli.calling.liveness import DEFAULT_ADMIN
from gateway.cli.output import (
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    format_table,
    print_json,
    print_note,
    print_text,
)
from gateway.config.load import ConfigError, load_file

keys = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Add, list, revoke and rotate the API keys of clients, in a file of hashed keys.\n\n"
    "Example: gateway keys add web --file keys.yaml",
)

FileOption = Annotated[Path | None, typer.Option("--file", metavar="FILE", help="The key file.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="CONFIG", help="Configuration that names the key file."),
]

NO_ADMIN: Final = AdminAddress(DEFAULT_ADMIN, is_given=False)

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SETTING: Final = "security.keys.file"
# A gateway looks at its files once a second.
_IN_FORCE_S: Final = 5.0
_PAUSE_S: Final = 0.1
_TIME: Final = re.compile(r"([1-9][0-9]*)(s|m|h|d|w)")


@keys.command()
@asks_admin(metavar=None)
def add(  # noqa: PLR0913, PLR0917  # one for each flag
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Name of the client.")],
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="How long it works, as in 90d.")
    ] = None,
    key_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="Its id; a free one by default.")
    ] = "",
    note: Annotated[str, typer.Option(metavar="TEXT", help="A note for operators.")] = "",
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the key from standard input.")
    ] = False,
    file: FileOption = None,
    config: ConfigOption = None,
    admin: AdminAddress = NO_ADMIN,
) -> None:
    """Add a key for CLIENT, and print the key, once.

    With --stdin an existing key is imported, and nothing is printed. Exit status: 0 success, 1 the
    file cannot be changed, or a running gateway does not use it; 2 usage error.

    Example: gateway keys add web --file keys.yaml --expires 90d
    """
    end = None if expires is None else _now() + _duration("--expires", expires)
    key = sys.stdin.readline().strip("\r\n") if stdin else new_key()
    path, address = _chosen(file, config, admin)
    digest = _change(
        path, lambda old: old.added(client, key, _now(), key_id=key_id, expires=end, note=note)
    )
    _note_unlisted(client, config)
    if not stdin:
        print_text(key)
    _confirm(address, path, digest)


@keys.command("list")
def list_keys(
    file: FileOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """List the keys: id, client, times and state, and never a key or its hash.

    Example: gateway keys list --file keys.yaml
    """
    found = _load(_chosen(file, config, NO_ADMIN)[0])
    rows = [_row(each) for each in found.keys]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    head = ("id", "client", "created", "expires", "state")
    print_text(format_table(head, [[row[name] or "-" for name in head] for row in rows]))


@keys.command()
@asks_admin(metavar=None)
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as listed.")],
    file: FileOption = None,
    config: ConfigOption = None,
    admin: AdminAddress = NO_ADMIN,
) -> None:
    """Revoke a key, and ask the running gateway whether it refuses the key.

    Exit status: 0 success, 1 the file cannot be changed, or a running gateway does not use it; 2
    usage error.

    Example: gateway keys revoke KEY_ID --file keys.yaml
    """
    path, address = _chosen(file, config, admin)
    digest = _change(path, lambda old: old.revoked(key_id, _now()))
    print_note(f"key {key_id} is revoked in {path}")
    _confirm(address, path, digest)


@keys.command()
@asks_admin(metavar=None)
def rotate(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Name of the client.")],
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the other keys still work.")
    ] = "7d",
    file: FileOption = None,
    config: ConfigOption = None,
    admin: AdminAddress = NO_ADMIN,
) -> None:
    """Add a key for CLIENT, print it, and let its other keys expire after the overlap.

    Exit status: 0 success, 1 the file cannot be changed, or a running gateway does not use it; 2
    usage error.

    Example: gateway keys rotate web --overlap 7d --file keys.yaml
    """
    end = _now() + _duration("--overlap", overlap)
    key = new_key()
    path, address = _chosen(file, config, admin)
    digest = _change(path, lambda old: old.expiring(client, end).added(client, key, _now()))
    _note_unlisted(client, config)
    print_text(key)
    _confirm(address, path, digest)


def _row(key: ApiKey) -> dict[str, str | None]:
    return {
        "id": key.id,
        "client": key.client,
        "created": time_text(key.created),
        "expires": None if key.expires is None else time_text(key.expires),
        "state": key.state(_now()),
    }


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _duration(option: str, text: str) -> timedelta:
    found = _TIME.fullmatch(text)
    if found is None:
        fail(f"{option} is {text!r}: expected a time such as 90d, 12h or 30m", WRONG_USAGE)
    try:
        length = timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
        _ = _now() + length
    except OverflowError:
        fail(f"{option} is {text!r}: expected a time that ends before the year 10000", WRONG_USAGE)
    return length


def _chosen(
    file: Path | None, config: Path | None, admin: AdminAddress
) -> tuple[Path, AdminAddress | None]:
    """Return the key file, and the admin port to ask; None if the configuration has no port."""
    if (file is None) == (config is None):
        fail("expected either --file FILE or -c CONFIG", WRONG_USAGE)
    if file is not None:
        return file.resolve(), admin
    assert config is not None  # noqa: S101  # one of them is given
    try:
        loaded = load_file(config)
    except ConfigError as error:
        fail(str(error), WRONG_USAGE)
    found = loaded.config.security.keys
    if found is None:
        fail(f"{config} has no security.keys; expected 'security: {{keys: {{file: FILE}}}}'")
    return (loaded.directory / found.file).resolve(), admin_of(loaded.config.admin, admin)


def _note_unlisted(client: str, config: Path | None) -> None:
    """Say that a configuration does not list the client of a new key."""
    if config is None:
        return
    known = load_file(config).config.clients
    if client not in known:
        near = get_close_matches(client, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else "it has no groups, tier and labels"
        print_note(f"client {client!r} is not listed in 'clients' of {config}; {hint}")


def _load(path: Path, *, is_new: bool = False) -> KeyFile:
    try:
        return load_key_file(path)
    except FileNotFoundError:
        if is_new:
            return KeyFile.new()
        fail(f"{path}: no such file")
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except KeyFileError as error:
        fail(f"{path}: {error}")


def _change(path: Path, edit: Callable[[KeyFile], KeyFile]) -> str:
    """Change the key file, one command at a time; return the hash of the new content."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        changed = edit(_load(path, is_new=True))
        save_key_file(path, changed)
    except KeyFileError as error:
        fail(f"{path}: {error}")
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")
    finally:
        os.close(folder)
    return sha256(changed.text().encode()).hexdigest()


def _confirm(admin: AdminAddress | None, path: Path, digest: str) -> None:
    """Say whether a running gateway has the key file with this hash in force; fail if not."""
    unknown = f"{path} is written, and no gateway could be asked whether it is in force"
    if admin is None:
        print_note(f"{unknown}: its configuration has no admin port")
        return
    end = time.monotonic() + _IN_FORCE_S
    try:
        while not (_is_in_force(files := _key_files(admin), digest) or time.monotonic() > end):
            time.sleep(_PAUSE_S)
    except AdminError as error:
        print_note(f"{unknown}: {error}")
        return
    if _is_in_force(files, digest):
        print_note(f"the gateway at {admin} has it in force")
        return
    others = [each for each in files if Path(each["file"]).resolve() != path]
    reasons = [each["reason"] for each in files if each["reason"]]
    reason = reasons[0] if reasons else "it has the content of before in force"
    if not files:
        reason = f"it reads no key file ({_SETTING})"
    elif others:
        reason = f"its key file is {others[0]['file']}"
    if not admin.is_given and (others or not files):
        print_note(f"{unknown}: the gateway at {admin} is another one: {reason}")
        return
    fail(f"{path} is written, but the gateway at {admin} does not use it: {reason}")


def _key_files(admin: AdminAddress) -> list[dict[str, Any]]:
    """Return the key files of a running gateway: several if its workers differ.

    Raises:
        AdminError: No gateway could be asked.
    """
    found = ask_status(admin).get("credentials")
    if found is None:
        raise AdminError(f"the gateway at {admin} is of an earlier version")
    return [each for each in found if each["key"] == _SETTING]


def _is_in_force(files: list[dict[str, Any]], digest: str) -> bool:
    return bool(files) and all(each["sha256"] == digest for each in files)
