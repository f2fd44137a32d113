"""The flags of commands that call a server: its TLS, and headers of each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gateway.cli.flag_groups import flag, with_flags
from gateway.cli.output import WRONG_USAGE, fail
from gateway.ir.context import Metadata

if TYPE_CHECKING:
    from gateway.config.tls import TlsConfig

C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """What the flags say.

    Attributes:
        tls: TLS to the server; None if no flag is about it, so that the URL decides.
        headers: Headers of each call, by name.
    """

    tls: TlsConfig | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def metadata(self) -> Metadata:
        """The headers, as calls have them."""
        return tuple((name.lower(), value) for name, value in self.headers.items())


def server_flags(command: C) -> C:
    """Give a command with the parameter `server` the flags of `ServerFlags`."""
    return with_flags("server", _FLAGS, _combined)(command)


def tls_values(
    ca: str | None, cert: str | None, key: str | None, *, insecure: bool
) -> dict[str, str] | None:
    """Return the key `tls` of an upstream as in YAML; None if no flag is about it."""
    files = {"ca": ca, "cert": cert, "key": key}
    found = {name: str(Path(path).absolute()) for name, path in files.items() if path is not None}
    if insecure:
        found["verify"] = "false"
    return found or None


def header_pair(flag_name: str, text: str) -> tuple[str, str]:
    """Return name and value of NAME=VALUE; end the command if it is something else."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        shown = name[:40] or "nothing"  # the value may be a secret
        fail(f"{flag_name} begins with {shown!r}; expected NAME=VALUE or NAME=@FILE", WRONG_USAGE)
    return name, value


def _combined(
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    insecure: bool,
    header: Sequence[str] | None,
) -> ServerFlags:
    values = tls_values(tls_ca, tls_cert, tls_key, insecure=insecure)
    if (tls_cert is None) != (tls_key is None):
        fail("--tls-cert or --tls-key is missing; expected both or neither", WRONG_USAGE)
    return ServerFlags(
        None if values is None else _tls_config(values), dict(map(_header, header or ()))
    )


def _tls_config(values: Mapping[str, str]) -> TlsConfig:
    from gateway.config.tls import TlsConfig  # noqa: PLC0415  # slow to import

    return TlsConfig.model_validate(values)


def _header(text: str) -> tuple[str, str]:
    name, value = header_pair("--header", text)
    if not value.startswith("@"):
        return name, value
    try:
        return name, Path(value[1:]).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        fail(f"--header {name}: cannot read {value[1:]}: {reason}", WRONG_USAGE)


_FLAGS = (
    flag(
        "tls_ca",
        Annotated[
            str | None,
            typer.Option(
                "--tls-ca",
                metavar="FILE",
                help="Authorities of the server; those of the system by default.",
            ),
        ],
    ),
    flag(
        "tls_cert",
        Annotated[
            str | None, typer.Option("--tls-cert", metavar="FILE", help="Client certificate.")
        ],
    ),
    flag(
        "tls_key",
        Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key.")],
    ),
    flag(
        "insecure",
        Annotated[bool, typer.Option("--insecure", help="Accept any certificate of the server.")],
        default=False,
    ),
    flag(
        "header",
        Annotated[
            list[str] | None,
            typer.Option(
                "--header",
                metavar="NAME=VALUE",
                help="Header of each call, or NAME=@FILE for a secret; repeatable.",
            ),
        ],
    ),
)
