"""The pages under `/ui/`: what `/api/v1/` has, as tables for people.

The templates are in `templates`, what browsers load in `static`. Nothing comes from elsewhere, and
without scripts everything but tensors and buttons is there. Pages are rendered on a thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote
from xml.etree.ElementTree import tostring

import yaml
from markupsafe import Markup

from gateway.app.admin.access import AdminNeed
from gateway.app.admin.api import SAFE_HEADERS, AdminApi, guards_of, json_response
from gateway.app.admin.status import Document
from gateway.migration.compare.statistics import wilson_interval
from gateway.migration.report.blocks import visible
from gateway.migration.report.plots import AgreementPoint, agreement_plot
from gateway.migration.report.report import utc_text
from gateway.wire.http import Headers, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from jinja2 import Environment

UI: Final = "/ui/"

_HERE: Final = Path(__file__).parent
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HTML: Final = Headers(
    [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", _POLICY),
        ("X-Frame-Options", "DENY"),
        *SAFE_HEADERS,
    ]
)
_STATIC: Final = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_PAGES: Final = (
    ("/ui/", "Overview"),
    ("/ui/migrations", "Migrations"),
    ("/ui/stock", "Callers"),
    ("/ui/configuration", "Configuration"),
)
_MAX_ROWS: Final = 500
_POINTS: Final = 120
_MINUTES: Final = 60

_QUESTIONS: Final = {
    "start": ("Start", "Start the cut-over: calls begin to go to the new target?"),
    "approve": ("Approve", "Approve the next step: more calls go to the new target?"),
    "pause": ("Pause", "Pause the cut-over: weights stay as they are?"),
    "resume": ("Resume", "Resume the cut-over?"),
    "rollback": ("Roll back", "Roll back: all calls go to the old target?"),
    "reset": ("Reset", "Reset the cut-over: state and evidence begin anew?"),
}
# What makes sense in a state; the controller decides. Where the state is another one: everything.
_COMMANDS: Final = {
    "ready": ("start",),
    "mirroring": ("pause", "rollback"),
    "baking": ("pause", "rollback"),
    "waiting_for_approval": ("approve", "pause", "rollback"),
    "paused": ("resume", "rollback", "reset"),
    "rolling_back": (),
    "rolled_back": ("resume", "reset"),
    "done": ("rollback",),
}

View = tuple[int, str, Document]
"""Status, name of the template and what it shows."""


class AdminPages:
    """Serves the paths that begin with `/ui/`.

    Args:
        api: Has the documents.
    """

    def __init__(self, api: AdminApi) -> None:
        self._api = api

    async def __call__(self, wire: HttpRequest) -> HttpResponse:
        """Return the response to one request."""
        refused = self._api.refused(wire, AdminNeed.READ)
        if refused is not None:
            return refused
        if wire.method not in {"GET", "HEAD"}:
            return json_response(405, {"error": f"method {wire.method!r} is not allowed"})
        names = [unquote(part) for part in wire.path.removeprefix(UI).split("/")]
        if names[0] == "static":
            return await asyncio.to_thread(_static, names[-1])
        status, template, view = await self._view(names)
        page = await asyncio.to_thread(_render, template, {**view, "pages": _PAGES})
        return HttpResponse(status, _HTML, (page,))

    async def _view(self, names: list[str]) -> View:
        """Return what a path shows."""
        document = self._api.migration(names[1]) if names[0] == "migrations" and names[1:] else None
        match names:
            case [""]:
                view = "overview.html", _overview(await self._api.status())
            case ["migrations"]:
                view = "migrations.html", self._migrations()
            case ["stock"]:
                view = "stock.html", _stock(*self._api.stock())
            case ["configuration"]:
                view = "configuration.html", _configuration(self._api.config())
            case ["migrations", _] if document is not None:
                view = "migration.html", _migration(document)
            case ["migrations", _, "samples", sample] if document is not None:
                view = "sample.html", _sample(document, sample)
            case _:
                text = "There is no such page."
                return 404, "error.html", {"title": "Not found", "page": "", "text": text}
        return 200, *view

    def _migrations(self) -> Document:
        rows = [{**each, "path": _path(each["name"])} for each in self._api.migrations()]
        return {"title": "Migrations", "page": "/ui/migrations", "migrations": rows}


def _static(name: str) -> HttpResponse:
    kind = _STATIC.get(name)
    if kind is None:
        return json_response(404, {"error": f"unknown file {name!r}"})
    headers = Headers([("Content-Type", kind), *SAFE_HEADERS])
    return HttpResponse(200, headers, ((_HERE / "static" / name).read_bytes(),))


def _render(template: str, view: Mapping[str, Any]) -> bytes:
    return _environment().get_template(template).render(view).encode()


@functools.cache
def _environment() -> Environment:
    """Return what renders: everything is escaped, and characters without a glyph are spelt out."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  # 10 ms

    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters["utc"] = lambda at_us: utc_text(int(at_us or 0))
    environment.filters["latency"] = _latency
    return environment


def _printable(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _latency(latency: Document | None, side: str, share: str) -> str:
    seconds = ((latency or {}).get(side) or {}).get(share)
    return "-" if seconds is None else f"{seconds * 1e3:.4g} ms"


def _path(migration: str, sample: str | None = None, root: str = UI) -> str:
    """Return the path of a migration, or of one of its samples."""
    path = f"{root}migrations/{quote(migration, safe='')}"
    return path if sample is None else f"{path}/samples/{quote(sample, safe='')}"


def _overview(status: Document) -> Document:
    traffic = status["traffic"]
    by_route = {row["route"]: row for row in traffic["routes"]}
    by_target = {(row["route"], row["target"]): row for row in traffic["targets"]}
    by_endpoint = {(row["upstream"], row["address"]): row for row in traffic["endpoints"]}
    weights = status["weights"]
    routes = [
        {
            **route,
            "traffic": by_route.get(route["name"]),
            "targets": [
                {"name": name, "weight": weight, "traffic": by_target.get((route["name"], name))}
                for name, weight in weights.get(route["name"], {}).items()
            ],
        }
        for route in status["routes"]
    ]
    endpoints = [
        {
            "server": "",
            **endpoint,
            "upstream": upstream["name"],
            "traffic": by_endpoint.get((upstream["name"], endpoint["address"])),
        }
        for upstream in status["upstreams"]
        for endpoint in upstream["endpoints"]
    ]
    return {
        "title": "Overview",
        "page": "/ui/",
        "status": {"models": (), "workers": (), **status},
        "routes": routes,
        "endpoints": endpoints,
        "warnings": [_warning(each) for each in reversed(status["warnings"])],
    }


def _warning(entry: Document) -> Document:
    named = {key: str(entry.get(key, "")) for key in ("timestamp", "level", "event")}
    rest = [f"{key}: {value}" for key, value in entry.items() if key not in named]
    return {**named, "details": "; ".join(rest)}


def _stock(status: int, document: Document) -> Document:
    rows = document.get("rows", [])
    return {
        "title": "Callers",
        "page": "/ui/stock",
        "error": document["error"] if status != 200 else "",  # noqa: PLR2004  # HTTP
        "rows": rows[:_MAX_ROWS],
        "more": max(0, len(rows) - _MAX_ROWS),
    }


def _configuration(document: Document) -> Document:
    changes = document["changes"]
    return {
        "title": "Configuration in force",
        "page": "/ui/configuration",
        "document": document,
        "lines": _lines(document["config"]),
        "changes": _lines(changes) if any(changes.values()) else [],
    }


def _lines(value: Any) -> list[str]:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100).splitlines()


def _migration(document: Document) -> Document:
    name = document["name"]
    evidence, cutover = document["evidence"], document["cutover"]
    found = evidence or {}
    timeline = found.get("timeline", [])
    skipped, dropped = found.get("skipped", {}), found.get("dropped", {})
    return {
        "title": f"Migration {name}",
        "page": "/ui/migrations",
        "name": name,
        "plan": document["plan"],
        "cutover": cutover,
        "commands": _commands("" if cutover is None else cutover["state"]),
        "evidence": evidence,
        "guards": guards_of(document),
        "outcomes": [(key, count) for key, count in found.get("outcomes", {}).items() if count],
        "plot": _plot(timeline),
        "timeline": timeline[-_MINUTES:],
        "samples": sorted(
            found.get("samples", []), key=lambda each: (not each["worst"], -each["at_us"])
        ),
        "lost": [
            (reason, skipped.get(reason, 0), dropped.get(reason, 0))
            for reason in dict.fromkeys((*skipped, *dropped))
            if skipped.get(reason) or dropped.get(reason)
        ],
        "sample_path": functools.partial(_path, name),
    }


def _commands(state: str) -> list[tuple[str, str, str]]:
    return [(name, *_QUESTIONS[name]) for name in _COMMANDS.get(state, _QUESTIONS)]


def _plot(timeline: list[Document]) -> Markup | None:
    """Return the agreement over time as SVG; some minutes become one if there are many."""
    if not timeline:
        return None
    width = -(-len(timeline) // _POINTS)
    points = []
    for first in range(0, len(timeline), width):
        rows = timeline[first : first + width]
        compared = sum(row["compared"] for row in rows)
        good = compared - sum(row["mismatched"] for row in rows)
        if compared:
            low, high = wilson_interval(good, compared)
            label = utc_text(rows[0]["minute_us"])
            points.append(AgreementPoint(label, good / compared, low, high))
    if not points:
        return None
    # The element escapes its texts itself.
    return Markup(tostring(agreement_plot(points), encoding="unicode"))  # noqa: S704


def _sample(document: Document, sample: str) -> Document:
    name = document["name"]
    kept = (document["evidence"] or {}).get("samples", [])
    return {
        "title": f"Call {sample}",
        "page": "/ui/migrations",
        "name": name,
        "migration_path": _path(name),
        "api_path": _path(name, sample, "/api/v1/"),
        "sample": next((each for each in kept if each["id"] == sample), None),
    }
