"""TLS of listeners, upstreams and the admin port in the configuration file."""

from collections.abc import Iterator
from pathlib import Path
from ssl import TLSVersion
from typing import Literal

from gateway.config.yaml_tree import KeyPath
from gateway.settings.fields import InputFile
from gateway.settings.model import Model
from gateway.transports.net.tls import ClientTls, ServerTls
from gateway.transports.net.tls_files import TlsFiles


class CertificateConfig(Model):
    """A certificate with its key. Paths are relative to the configuration file."""

    cert: InputFile
    """PEM file of the certificate chain."""
    key: InputFile
    """PEM file of its key."""


class TlsConfig(Model):
    """TLS of a listener or an upstream. Paths are relative to the configuration file.

    Changed files are used within 2 s. Broken files leave the old ones in force.
    """

    cert: InputFile | None = None
    """PEM file of the certificate chain: required for a listener, sent by an upstream. Default:
    none."""
    key: InputFile | None = None
    """PEM file of the key of `cert`. Default: none."""
    ca: InputFile | None = None
    """PEM file of trusted authorities. With it, a listener requires client certificates.
    Default: none for a listener, those of the system for an upstream."""
    client_certificates: Literal["required", "optional"] = "required"
    """Whether a listener with `ca` refuses clients without one. Default: `required`."""
    certificates: tuple[CertificateConfig, ...] = ()
    """Further certificates of a listener, each for its DNS names (SNI), wildcards too. Default:
    `[]`."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """Oldest version. Default: `1.2`."""
    verify: bool = True
    """Whether the certificate of an upstream is verified. With `false`, anyone in between can
    read and change calls. Default: `true`."""

    def files(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield the files, each with its key."""
        for key in ("cert", "key", "ca"):
            if getattr(self, key) is not None:
                yield (key,), getattr(self, key)
        for index, each in enumerate(self.certificates):
            yield ("certificates", index, "cert"), each.cert
            yield ("certificates", index, "key"), each.key

    @property
    def oldest_version(self) -> TLSVersion:
        """The oldest version of TLS, as `ssl` names it."""
        return TLSVersion.TLSv1_3 if self.min_version == "1.3" else TLSVersion.TLSv1_2


def client_tls(tls: TlsConfig, directory: Path) -> ClientTls:
    """Return TLS to a server, with the paths of its files."""
    return ClientTls(
        ca=_path(directory, tls.ca),
        cert=_path(directory, tls.cert),
        key=_path(directory, tls.key),
        verify=tls.verify,
        min_version=tls.oldest_version,
    )


def client_files(socket: str, tls: TlsConfig | None, directory: Path) -> TlsFiles | None:
    """Return the TLS files towards a server; see `server_files`."""
    return None if tls is None else TlsFiles(socket, client_tls(tls, directory))


def server_files(socket: str, tls: TlsConfig | None, directory: Path) -> TlsFiles | None:
    """Return the TLS files of a socket, which logs name; None without TLS.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file has invalid content, or a key is missing.
    """
    if tls is None:
        return None
    if tls.cert is None or tls.key is None:
        raise ValueError(f"'tls' of {socket} is incomplete; expected 'cert' and 'key'")
    found = ServerTls(
        cert=str(directory / tls.cert),
        key=str(directory / tls.key),
        client_ca=_path(directory, tls.ca),
        requires_client=tls.client_certificates == "required",
        others=tuple(
            (str(directory / each.cert), str(directory / each.key)) for each in tls.certificates
        ),
        min_version=tls.oldest_version,
    )
    return TlsFiles(socket, found)


def _path(directory: Path, name: str | None) -> str | None:
    return None if name is None else str(directory / name)
