"""The flags of `gateway serve` for TLS of its listeners and of its upstreams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.calling.server_flags import header_pair, tls_values
from gateway.cli.flag_groups import flag, with_flags


@dataclass(frozen=True, slots=True)
class TlsFlags:
    """What the flags say; None where one is absent.

    Attributes:
        cert: Certificate of the listeners.
        key: Its key.
        ca: Authorities of client certificates.
        upstream_ca: Authorities of the upstreams.
        upstream_cert: Client certificate for them.
        upstream_key: Its key.
        upstream_insecure: Whether certificates of upstreams are not verified.
        upstream_headers: Headers of each request to them, as NAME=VALUE.
    """

    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    upstream_ca: str | None = None
    upstream_cert: str | None = None
    upstream_key: str | None = None
    upstream_insecure: bool = False
    upstream_headers: Sequence[str] = ()

    @property
    def of_listeners(self) -> dict[str, object]:
        """The flags about listeners, by name."""
        return {"--tls-cert": self.cert, "--tls-key": self.key, "--tls-ca": self.ca}

    @property
    def of_upstreams(self) -> dict[str, object]:
        """The flags about upstreams, by name."""
        return {
            "--upstream-tls-ca": self.upstream_ca,
            "--upstream-tls-cert": self.upstream_cert,
            "--upstream-tls-key": self.upstream_key,
            "--upstream-insecure": self.upstream_insecure or None,
            "--upstream-header": self.upstream_headers or None,
        }

    @property
    def given(self) -> dict[str, object]:
        """All flags, by name."""
        return self.of_listeners | self.of_upstreams

    def added_to(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration, as plain values of YAML, with what the flags add.

        Raises:
            ValueError: A certificate or its key is missing.
        """
        if (self.cert is None) != (self.key is None) or (self.ca and self.cert is None):
            raise ValueError("--tls-cert or --tls-key is missing; listeners with TLS need both")
        if (self.upstream_cert is None) != (self.upstream_key is None):
            raise ValueError(
                "--upstream-tls-cert or --upstream-tls-key is missing; expected both or neither"
            )
        own = tls_values(self.ca, self.cert, self.key, insecure=False)
        added = {} if own is None else {"tls": own}
        changed = {**config, "listeners": [{**each, **added} for each in config["listeners"]]}
        upstreams = config.get("upstreams")
        if upstreams:
            changed["upstreams"] = {
                name: {**each, **self._of_upstream()} for name, each in upstreams.items()
            }
        return changed

    def _of_upstream(self) -> dict[str, Any]:
        tls = tls_values(
            self.upstream_ca,
            self.upstream_cert,
            self.upstream_key,
            insecure=self.upstream_insecure,
        )
        headers = dict(map(_header, self.upstream_headers))
        return ({} if tls is None else {"tls": tls}) | ({"headers": headers} if headers else {})


def _header(text: str) -> tuple[str, str]:
    """Return a header as in YAML: that of a file is read there, and again by a reload."""
    name, value = header_pair("--upstream-header", text)
    return name, f"${{file:{Path(value[1:]).absolute()}}}" if value.startswith("@") else value


def _combined(upstream_header: Sequence[str] | None, **found: Any) -> TlsFlags:
    names = {f"tls_{name}": name for name in ("cert", "key", "ca")}
    names |= {f"upstream_tls_{name}": f"upstream_{name}" for name in ("cert", "key", "ca")}
    values = {names.get(name, name): value for name, value in found.items()}
    return TlsFlags(**values, upstream_headers=tuple(upstream_header or ()))


def _file(name: str, text: str) -> Any:
    option = typer.Option(f"--{name.replace('_', '-')}", metavar="FILE", help=text)
    return flag(name, Annotated[str | None, option])


tls_flags = with_flags(
    "tls",
    (
        _file("tls_cert", "Certificate of the listeners, with its chain."),
        _file("tls_key", "Its private key."),
        _file("tls_ca", "Authorities of client certificates, which clients then need."),
        _file("upstream_tls_ca", "Authorities of the upstreams; those of the system by default."),
        _file("upstream_tls_cert", "Client certificate for the upstreams."),
        _file("upstream_tls_key", "Its private key."),
        flag(
            "upstream_insecure",
            Annotated[
                bool,
                typer.Option("--upstream-insecure", help="Accept any certificate of an upstream."),
            ],
            default=False,
        ),
        flag(
            "upstream_header",
            Annotated[
                list[str] | None,
                typer.Option(
                    "--upstream-header",
                    metavar="NAME=VALUE",
                    help="Header of each request to upstreams, or NAME=@FILE for a secret; "
                    "repeatable.",
                ),
            ],
        ),
    ),
    _combined,
)
"""Gives a command with the parameter `tls` the flags of `TlsFlags`."""
