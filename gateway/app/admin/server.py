"""The servers of the admin port, and of the port that has the metrics alone.

A page or a document of the gateway is a folder of this package and its `ROUTES` in the table here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import structlog

from gateway.admin import html
from gateway.admin.access import AdminAccess, access_of
from gateway.admin.audit import AuditLog, open_audit
from gateway.admin.router import AdminRouter
from gateway.admin.tokens import tokens_of
from gateway.api.admin import AdminRoute
from gateway.api.start_error import reason_of
from gateway.app.admin import changes, config, metrics, overview, probes, status
from gateway.app.admin.changes import reload_response
from gateway.app.admin.running import RunningGateway
from gateway.app.run.reload import REQUEST, ReloadResult
from gateway.config.admin import AdminConfig
from gateway.config.load import LoadedConfig
from gateway.settings.units import Address, StreamAddress
from gateway.transports.choice import http_alpn
from gateway.transports.contract import HttpMount, Server, ServerLimits
from gateway.transports.http1.server import HttpServer
from gateway.transports.memory_budget import MemoryBudget
from gateway.transports.net.tls_files import TlsFiles
from gateway.transports.net.unix_socket import UnixSocket

log = structlog.get_logger(__name__)

PAGE_DRAIN_S: Final = 1.0
"""Longest time for the pages that are being read when another gateway takes over."""

_MIB: Final = 1 << 20

ROUTES: Final[tuple[AdminRoute, ...]] = (
    *metrics.ROUTES,
    *probes.ROUTES,
    *status.ROUTES,
    *overview.ROUTES,
    *config.ROUTES,
    *changes.ROUTES,
    *html.ROUTES,
)
"""The routes of the gateway itself."""


def admin_routers(
    admin: AdminConfig,
    gateway: RunningGateway,
    directory: Path = Path(),
    audit: AuditLog | None = None,
) -> dict[str, AdminRouter]:
    """Return what serves the admin port and the port of the metrics: "admin", "metrics".

    A reload changes who has access.

    Args:
        admin: Who has access.
        gateway: What they show.
        directory: Folder that the files of tokens are relative to.
        audit: The audit log; None for none.

    Raises:
        ValueError: Two routes have one path and method.
    """
    access = access_of(admin, directory)
    if gateway.is_complete:
        routes = (*ROUTES, *gateway.routes)
        gateway.reloader.on_applied = partial(_change_access, access)
        if audit is not None:
            gateway.reloader.on_reload = partial(_note_reload, audit)
    else:
        routes = tuple(route for route in ROUTES if route.open in _ALWAYS)
    return {
        "admin": AdminRouter(gateway, routes, access, audit),
        "metrics": AdminRouter(gateway, metrics.ROUTES, access, audit),
    }


def _note_reload(audit: AuditLog, cause: str, result: ReloadResult) -> None:
    """Write the audit line of a reload; the line of a request has it already."""
    if cause != REQUEST:
        response = reload_response(result)
        audit.put_reload(cause, cast("Mapping[str, Any]", response.document), response.status)


# The groups of routes that need no configuration to show.
_ALWAYS: Final = frozenset({"metrics", "probes", "status"})


async def _change_access(access: AdminAccess, loaded: LoadedConfig) -> None:
    admin = loaded.config.admin or AdminConfig()
    access.change(admin, await asyncio.to_thread(tokens_of, admin, loaded.directory))


async def start_pages(
    admin: AdminConfig | None,
    gateway: RunningGateway,
    *,
    directory: Path = Path(),
    tls: TlsFiles | None = None,
    reuse_port: bool = False,
) -> dict[str, PagesServer]:
    """Start the admin port and return its servers by name: "admin", "metrics".

    Args:
        admin: Their addresses. None for the default ones; a default address in use is skipped.
        gateway: What they show.
        directory: Folder that the files of tokens and the audit log are relative to.
        tls: The TLS files; None for no TLS.
        reuse_port: Share the addresses with another gateway.

    Raises:
        OSError: The gateway cannot listen on an address of the configuration, or open the audit
            log.
        ValueError: Two routes have one path and method.
    """
    settings = AdminConfig() if admin is None else admin
    addresses = {"admin": settings.address, "metrics": settings.metrics}
    configured = set() if admin is None else admin.model_fields_set
    audit = open_audit(admin, directory)
    started: dict[str, PagesServer] = {}
    for name, router in admin_routers(settings, gateway, directory, audit).items():
        address = addresses[name]
        if address is None:
            continue
        server = _server(address, router, tls, audit, reuse_port=reuse_port)
        try:
            await server.start()
        except OSError as error:
            if ("address" if name == "admin" else name) in configured:
                for other in started.values():
                    await other.stop()
                raise OSError(f"{name}: {reason_of(error)}") from error
            _log_unstarted(name, address, error, started)  # it must not stop the data listeners
            continue
        started[name] = server
    return started


def _log_unstarted(
    name: str, address: Address | StreamAddress, error: OSError, started: Mapping[str, Server]
) -> None:
    """Log that a default address is in use, as that of the metrics is next to a Triton."""
    if name == "metrics" and "admin" in started:
        instead = f"http://{started['admin'].address}/metrics"
        log.info("port of the metrics is in use", address=str(address), instead=instead)
        return
    log.warning("admin page not started", page=name, address=str(address), reason=str(error))


class PagesServer(HttpServer):
    """A server of the admin port, which closes the audit log when it stops.

    Args:
        audit: The audit log; None for none.
        address: Where it listens.
        reuse_port: Whether it takes the place of another gateway.
        settings: Other arguments of `HttpServer`.
    """

    def __init__(
        self,
        audit: AuditLog | None,
        address: Address | StreamAddress,
        *,
        reuse_port: bool,
        **settings: Any,
    ) -> None:
        tcp = address.tcp if isinstance(address, StreamAddress) else address
        where = () if tcp is None else (tcp.host, tcp.port)
        super().__init__(*where, reuse_port=reuse_port, **settings)
        self._file = (
            UnixSocket(address.path)
            if isinstance(address, StreamAddress) and address.tcp is None
            else None
        )
        self._replaces = reuse_port
        self._audit = audit

    def bind(self) -> socket.socket | None:
        """Return a unix socket, if the address is the path of one. Raises OSError."""
        return None if self._file is None else self._file.bind(replaces=self._replaces)

    def reopen_logs(self) -> None:
        """Open the file of the audit log again, as after logrotate."""
        if self._audit is not None:
            self._audit.reopen()

    async def stop(self) -> None:
        """Stop; idempotent."""
        await super().stop()
        if self._file is not None:
            self._file.remove()
        if self._audit is not None:
            self._audit.close()


def _server(
    address: Address | StreamAddress,
    router: AdminRouter,
    tls: TlsFiles | None,
    audit: AuditLog | None,
    *,
    reuse_port: bool,
) -> PagesServer:
    return PagesServer(
        audit,
        address,
        reuse_port=reuse_port,
        tls=None if tls is None else tls.context(*http_alpn("native")),
        mounts=[HttpMount(("",), router)],
        limits=ServerLimits(message_bytes=_MIB, connections=64, connections_per_address=64),
        budget=MemoryBudget(8 * _MIB),
        reserve=True,
    )
