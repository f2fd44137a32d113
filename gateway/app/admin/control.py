"""The admin pages that change the gateway or show its configuration."""

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from gateway.app.admin.access import AdminAccess, AdminNeed, access_of, change_access
from gateway.app.certificates import CERTIFICATES
from gateway.app.errors import StartError
from gateway.app.reload import Reloader, ReloadResult
from gateway.app.runtime_changes import RuntimeChanges, differences, runtime_document
from gateway.config.models import AdminConfig, Config
from gateway.migration.callers.inventory import merged_rows
from gateway.migration.settings import CAPTURE, STOCK
from gateway.telemetry.reload_metrics import APPLIED
from gateway.wire.http import HttpRequest

Document = dict[str, Any]
Change = Callable[[RuntimeChanges, Config], RuntimeChanges]

_METHODS: Final = {
    "/config": "GET",
    "/stock": "GET",
    "/capture": "GET",
    "/capture/start": "POST",
    "/capture/stop": "POST",
    "/reload": "POST",
    "/upstream/drain": "POST",
    "/upstream/enable": "POST",
    "/route/weights": "POST",
}


class _EndpointBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/upstream/drain` and `/upstream/enable`."""

    name: str


class _WeightsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/route/weights`; without weights, those of the file apply again."""

    route: str
    weights: dict[str, int] | None = None


class _CaptureBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of `/capture/start`; absent fields are as in the file."""

    models: tuple[str, ...] | None = None
    percent: float | None = None
    payload: Literal["none", "hash", "full"] | None = None


class Control:
    """Handles requests for the admin pages about the configuration.

    Args:
        reloader: Knows the configuration in force.
        access: Decides who may change the gateway.
    """

    paths: Final = tuple(_METHODS)

    def __init__(self, reloader: Reloader, access: AdminAccess) -> None:
        self._reloader = reloader
        self.access = access
        reloader.on_applied = self._change_access

    async def __call__(self, wire: HttpRequest) -> tuple[int, Document]:
        """Return the status and the document for a request to one of `paths`."""
        method = _METHODS[wire.path]
        if wire.method != method and not (method == "GET" and wire.method == "HEAD"):
            return 405, {"error": f"method {wire.method!r} is not allowed; expected {method}"}
        pages = {"/config": self.config, "/stock": self.stock, "/capture": self._capture}
        if wire.path in pages:
            refused = self.access.refusal(wire, AdminNeed.READ)
            if refused is not None:
                return refused.status, {"error": refused.reason}
            return pages[wire.path]()
        refusal = self.access.command_refusal(wire)
        if refusal is not None:
            return 403, {"error": refusal}
        if wire.path == "/reload":
            return reload_document(await self._reloader.reload())
        return await self._change(wire)

    def _change_access(self, config: Config) -> None:
        change_access(self.access, config.admin or AdminConfig())

    def stock(self) -> tuple[int, Document]:
        """Return who calls what; status 404 where nothing is counted."""
        loaded = self._reloader.loaded
        state = loaded.config.state
        if STOCK.of(loaded.config) is None or state is None:
            text = "stock-taking is off; expected 'stock: {}' and 'state' in the configuration"
            return 404, {"error": text}
        rows = merged_rows(loaded.directory / state.directory)
        return 200, {"rows": [row.document() for row in rows]}

    def _capture(self) -> tuple[int, Document]:
        """Return what is recorded; the metrics have the counts."""
        loaded = self._reloader.runtime_changes.apply(self._reloader.loaded)
        config = CAPTURE.of(loaded.config)
        if config is None:
            return 404, {"error": "nothing is captured; expected 'capture' in the configuration"}
        return 200, {
            "enabled": config.enabled,
            "directory": str(loaded.directory / config.directory),
            "models": list(config.models),
            "percent": config.percent,
            "payload": config.payload,
        }

    def effective_config(self) -> Config:
        """Return the configuration with the changes that were made at run time."""
        return self._reloader.runtime_changes.apply(self._reloader.loaded).config

    def runtime(self) -> Document:
        """Return the changes that were made at run time, and hold against the file."""
        reloader = self._reloader
        return runtime_document(differences(reloader.runtime_changes, reloader.loaded.config))

    async def _change(self, wire: HttpRequest) -> tuple[int, Document]:
        try:
            await self._reloader.change(_read_change(wire))
        except LookupError as error:
            return 404, {"error": str(error.args[0])}
        except StartError as error:
            return 422, {"error": str(error)}
        except ValueError as error:
            return 400, {"error": str(error)}
        return 200, {"ok": True, "changes": self._reloader.runtime_changes.document()}

    def config(self) -> tuple[int, Document]:
        """Return the configuration in force, without secrets."""
        loaded = self._reloader.loaded
        return 200, {
            "file": loaded.source,
            "sha256": loaded.sha256,
            "changes": self._reloader.runtime_changes.document(),
            "config": loaded.without_secrets(),
        }


def control_of(config: Config, reloader: Reloader) -> Control:
    """Return the handler of the admin pages for a configuration."""
    return Control(reloader, access_of(config.admin or AdminConfig()))


def _read_change(wire: HttpRequest) -> Change:
    """Return the change that a request asks for.

    Raises:
        ValueError: The body is invalid.
    """
    if wire.path == "/route/weights":
        body = msgspec.json.decode(wire.view, type=_WeightsBody)
        if any(weight < 0 for weight in (body.weights or {}).values()):
            raise ValueError("a weight is negative; expected 0 or more")
        return lambda changes, config: changes.with_weights(config, body.route, body.weights)
    if wire.path == "/capture/start":
        started = msgspec.json.decode(wire.view or b"{}", type=_CaptureBody)
        values = {"enabled": True, **msgspec.to_builtins(started)}
        return lambda changes, _config: changes.with_part("capture", values)
    if wire.path == "/capture/stop":
        return lambda changes, _config: changes.with_part("capture", {"enabled": False})
    name = msgspec.json.decode(wire.view, type=_EndpointBody).name
    drained = wire.path == "/upstream/drain"
    return lambda changes, config: changes.with_drained(config, name, drained=drained)


def reload_document(result: ReloadResult) -> tuple[int, Document]:
    """Return the response to a reload: status 200, or 422 with the errors."""
    document: Document = {
        "ok": result.outcome == APPLIED,
        "outcome": result.outcome,
        "file": result.source,
        "sha256": result.sha256,
    }
    if result.outcome == APPLIED:
        changes = dict(result.changes)
        certificates = changes.pop(CERTIFICATES, [])
        runtime = runtime_document(result.runtime)
        return 200, document | {
            "changes": changes,
            CERTIFICATES: certificates,
            "runtime": runtime,
        }
    problems = [problem.entry() for problem in result.problems]
    return 422, document | {"error": result.error, "problems": problems}
