"""The admin port in the configuration file: its addresses, and who may do what there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.config.access import ClientName
from gateway.config.tls import TlsConfig, server_files
from gateway.settings.fields import (
    AdminToken,
    InputFile,
    ListenAddress,
    LogFile,
    Names,
    SocketAddress,
)
from gateway.settings.model import Model
from gateway.settings.units import Address, StreamAddress
from gateway.transports.net.tls_files import TlsFiles

Roles = tuple[Literal["read", "operate", "migrate"], ...]


class AdminTokenConfig(Model):
    """A token of the admin port, with what its owner may do. It needs `file` or `token`."""

    name: ClientName
    """Its name in the audit log."""
    roles: Annotated[Roles, Field(min_length=1)]
    """What it allows. `read` shows the status, the configuration and the callers. `operate` adds
    reloads, drained endpoints, weights and recording. `migrate` adds cut-overs and payloads to
    `read`."""
    file: InputFile | None = None
    """File with the token. Changes are in force within 2 s. Default: none."""
    token: AdminToken | None = Field(default=None, repr=False)
    """The token, of at least 16 characters, such as `${env:OPS}`. Default: none."""

    @model_validator(mode="after")
    def _check_source(self) -> AdminTokenConfig:
        if (self.file is None) == (self.token is None):
            raise ValueError("a token of the admin port needs exactly one of 'file' and 'token'")
        return self


class AdminConfig(Model):
    """Metrics and probes for operators, on ports of their own."""

    @model_validator(mode="before")
    @classmethod
    def _read_off(cls, value: object) -> object:
        """Read `off`: no port at all with `address`, unless `metrics` is set.

        YAML 1.1, as Helm reads it, makes `false` of the word.
        """
        if not isinstance(value, dict):
            return value
        is_off = ("off", "false").__contains__
        off = [key for key, each in value.items() if is_off(each) and key != "remote_changes"]
        found = {**value, **dict.fromkeys(off)}
        return {"metrics": None, **found} if "address" in off else found

    address: SocketAddress | None = StreamAddress(Address("127.0.0.1", 9901))
    """Address of the admin port. `unix:/path` is a socket that this user and group alone reach;
    its requests are those of this machine. `null` switches it off, and `off` both addresses.
    Default: `127.0.0.1:9901`, if the port is free."""
    token: AdminToken | None = Field(default=None, repr=False)
    """What other machines send, as `authorization: Bearer TOKEN` or as the password of a
    browser, for all but probes, metrics and `/status`. Default: none; then they only read, and
    see no payload."""
    tokens: tuple[AdminTokenConfig, ...] = ()
    """Further tokens, with names and roles. Default: `[]`."""
    local: Roles = ("read", "operate", "migrate")
    """Roles of requests from this machine without a token. Default: `[read, operate, migrate]`."""
    open: tuple[Literal["probes", "metrics", "status", "verdict"], ...] = ("probes", "metrics")
    """Pages that need no role and no known host: `/livez` and `/readyz`, `/metrics`, `/status`,
    and the verdict of a migration, whose host is checked. With none of `tokens`, `local` and
    `open` in the file, `status` and `verdict` are open, too. Default: `[probes, metrics]`."""
    audit: LogFile | None = None
    """File with a JSON line for each change, view of payloads and refusal, before its response.
    Default: none."""
    hosts: Names = ()
    """Names of this gateway in the `host` header, besides IP addresses, `localhost` and the host
    of `address`. Others are refused. Default: `[]`."""
    tls: TlsConfig | None = None
    """TLS of both addresses. With `ca`, clients need a certificate. Default: none."""
    metrics: ListenAddress | None = Address("127.0.0.1", 8002)
    """Second address of `/metrics`, on the port where Triton has it. `null` switches it off.
    Default: `127.0.0.1:8002`, if the port is free."""
    # A retired key, see retired.py.
    remote_changes: bool = False

    @model_validator(mode="after")
    def _check_names(self) -> AdminConfig:
        names = ["local", *(["token"] if self.token else []), *(each.name for each in self.tokens)]
        for each in self.tokens:
            if names.count(each.name) > 1:
                raise ValueError(
                    f"the name {each.name!r} is not of one token alone; expected other names than "
                    "those of the other tokens, 'local' and, beside 'token', 'token'"
                )
        return self

    @property
    def has_roles(self) -> bool:
        """Whether the file says which roles there are, so that no other request is allowed."""
        return bool({"tokens", "local", "open"} & self.model_fields_set)


def admin_tls(config: AdminConfig | None, directory: Path) -> TlsFiles | None:
    """Return the TLS files of the admin port; see `server_files`."""
    return server_files("admin", None if config is None else config.tls, directory)
