"""The commands `keys`, which change the file of hashed API keys."""

import fcntl
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

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

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_TIME: Final = re.compile(r"([1-9][0-9]*)(s|m|h|d|w)")


@keys.command()
def add(
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
) -> None:
    """Add a key for CLIENT, and print the key, once.

    With --stdin an existing key is imported, and nothing is printed.

    Example: gateway keys add web --file keys.yaml --expires 90d
    """
    end = None if expires is None else _now() + _duration("--expires", expires)
    key = sys.stdin.readline().strip("\r\n") if stdin else new_key()
    with _editing(file, config) as change:
        change(lambda old: old.added(client, key, _now(), key_id=key_id, expires=end, note=note))
    if not stdin:
        print_text(key)


@keys.command("list")
def list_keys(
    file: FileOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """List the keys: id, client, times and state, and never a key or its hash.

    Example: gateway keys list --file keys.yaml
    """
    found = _load(_path(file, config))
    rows = [_row(each) for each in found.keys]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    head = ("id", "client", "created", "expires", "state")
    print_text(format_table(head, [[row[name] or "-" for name in head] for row in rows]))


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as listed.")],
    file: FileOption = None,
    config: ConfigOption = None,
) -> None:
    """Revoke a key. It is refused within 2 s.

    Example: gateway keys revoke KEY_ID --file keys.yaml
    """
    with _editing(file, config) as change:
        change(lambda old: old.revoked(key_id, _now()))
    print_note(f"key {key_id} is revoked")


@keys.command()
def rotate(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Name of the client.")],
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the other keys still work.")
    ] = "7d",
    file: FileOption = None,
    config: ConfigOption = None,
) -> None:
    """Add a key for CLIENT, print it, and let its other keys expire after the overlap.

    Example: gateway keys rotate web --overlap 7d --file keys.yaml
    """
    end = _now() + _duration("--overlap", overlap)
    key = new_key()
    with _editing(file, config) as change:
        change(lambda old: old.expiring(client, end).added(client, key, _now()))
    print_text(key)


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


def _path(file: Path | None, config: Path | None) -> Path:
    """Return the key file that the options name."""
    if (file is None) == (config is None):
        fail("expected either --file FILE or -c CONFIG", WRONG_USAGE)
    if file is not None:
        return file
    assert config is not None  # noqa: S101  # one of them is given
    try:
        loaded = load_file(config)
    except ConfigError as error:
        fail(str(error), WRONG_USAGE)
    found = loaded.config.security.keys
    if found is None:
        fail(f"{config} has no security.keys; expected 'security: {{keys: {{file: FILE}}}}'")
    return loaded.directory / found.file


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


@contextmanager
def _editing(
    file: Path | None, config: Path | None
) -> Iterator[Callable[[Callable[[KeyFile], KeyFile]], None]]:
    """Yield what changes the key file; one command at a time changes it."""
    path = _path(file, config).resolve()

    def change(edit: Callable[[KeyFile], KeyFile]) -> None:
        try:
            save_key_file(path, edit(_load(path, is_new=True)))
        except KeyFileError as error:
            fail(f"{path}: {error}")
        except OSError as error:
            fail(f"cannot write {path}: {error.strerror}")

    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield change
    finally:
        os.close(folder)
