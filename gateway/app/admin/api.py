"""`/api/v1/`: the gateway, its migrations and its callers as JSON, and commands of a cut-over.

The pages under `/ui/` show the same documents; see `pages.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec
import orjson
from prometheus_client.core import Metric

from gateway.app.admin.access import AdminAccess, AdminNeed
from gateway.app.admin.control import Control
from gateway.app.admin.events import EventHub, TooManyListeners
from gateway.app.admin.rates import TrafficWindow
from gateway.app.admin.status import Document, Status
from gateway.app.parts import LeadingParts
from gateway.app.route_rules import ruled_routes, target_name
from gateway.config.models import Config
from gateway.migration.evidence.verdicts import Standing
from gateway.migration.settings import MIGRATIONS
from gateway.wire.http import Headers, HttpRequest, HttpResponse

COMMANDS: Final = ("start", "pause", "resume", "approve", "rollback", "reset")
"""What can be done with a cut-over."""

API: Final = "/api/v1/"

SAFE_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""So that no browser stores a response, or takes it for anything else."""

_JSON: Final = Headers([("Content-Type", "application/json"), *SAFE_HEADERS])
_EVENTS: Final = Headers([("Content-Type", "text/event-stream"), *SAFE_HEADERS])
_ASK_TOKEN: Final = ("WWW-Authenticate", 'Basic realm="Tensor Gateway", charset="UTF-8"')
_MAX_BODY: Final = 65_536
_PART_BYTES: Final = 1 << 18


class EvidenceSource(Protocol):
    """What the shadow process has found about the migrations."""

    @property
    def evidence(self) -> Mapping[str, Document]:
        """The latest evidence by migration."""
        ...

    async def sample(self, migration: str, sample: str) -> Document | None:
        """Return one kept sample with its tensors; None if it is not kept any more."""
        ...


class CutoverSource(Protocol):
    """What moves traffic to the new target of a migration."""

    def document(self, migration: str) -> Document | None:
        """Return state, step, weight and events; None for a migration without a cut-over."""
        ...

    def moved(self, config: Config) -> Mapping[str, tuple[str, float]]:
        """Return the target and the percentage of each cut-over, by route."""
        ...

    def verdict(self, migration: str) -> tuple[Standing, Document] | None:
        """Return the verdict of all guards, and the document; None without a cut-over."""
        ...

    async def command(
        self, migration: str, command: str, at_step: int | None = None
    ) -> Document | None:
        """Run one of `COMMANDS`.

        Raises:
            LookupError: There is no such cut-over.
            ValueError: The state does not allow it.
        """
        ...


@dataclass(frozen=True, slots=True)
class AdminSources:
    """What the admin port shows.

    Attributes:
        status: Returns the status.
        families: Returns the metrics.
        control: Knows the configuration in force and the callers.
        evidence: What the shadow process has found; None without one.
        cutover: Moves traffic; None without a cut-over.
    """

    status: Status
    families: Callable[[], Awaitable[Iterable[Metric]]]
    control: Control
    evidence: EvidenceSource | None = None
    cutover: CutoverSource | None = None

    @classmethod
    def of(
        cls,
        status: Status,
        families: Callable[[], Awaitable[Iterable[Metric]]],
        control: Control,
        leading: LeadingParts | None,
    ) -> AdminSources:
        """Return the sources of a gateway with the parts of extensions that lead."""
        evidence, cutover = None, None
        for part in leading or ():
            evidence = getattr(part, "evidence", None)
            cutover = getattr(part, "cutovers", None)
        return cls(status, families, control, evidence, cutover)


class _CommandBody(msgspec.Struct, forbid_unknown_fields=True):
    at_step: int | None = None


class AdminApi:
    """Serves the paths that begin with `/api/v1/`.

    Args:
        sources: What it shows.
        access: Decides who may do what.
    """

    def __init__(self, sources: AdminSources, access: AdminAccess) -> None:
        self._sources = sources
        self._access = access
        self._window = TrafficWindow()
        self.events = EventHub(self._changes)

    async def __call__(self, wire: HttpRequest) -> AsyncGenerator[HttpResponse, None]:
        """Yield the response to one request."""
        names = [unquote(part) for part in wire.path.removeprefix(API).split("/")]
        refused = self.refused(wire, _need(names))
        if refused is not None:
            yield refused
        elif names == ["events"] and wire.method == "GET":
            try:
                listening = self.events.listen()
            except TooManyListeners as error:
                yield json_response(503, {"error": str(error)}, ("Retry-After", "5"))
                return
            async with aclosing(listening) as events:
                async for event in events:
                    yield HttpResponse(200, _EVENTS, (event,))
        else:
            for part in _parts(json_response(*await self._respond(wire, names))):
                yield part

    def refused(self, wire: HttpRequest, need: AdminNeed) -> HttpResponse | None:
        """Return the response to a request that is not allowed; None if it is."""
        refusal = self._access.refusal(wire, need)
        if refusal is None:
            return None
        asks = (_ASK_TOKEN,) if refusal.status == 401 else ()  # noqa: PLR2004  # HTTP
        return json_response(refusal.status, {"error": refusal.reason}, *asks)

    async def _respond(self, wire: HttpRequest, names: list[str]) -> tuple[int, Document]:
        method = "GET" if wire.method == "HEAD" else wire.method
        match method, names:
            case "GET", [name] if name in _PAGES:
                return await self._page(name)
            case "GET", ["migrations", name, "samples", sample]:
                return await self._sample(name, sample)
            case "GET", ["migrations", name]:
                return self._known(name)
            case "GET" | "POST", ["migrations", name, "verdict"]:
                return self._verdict(name, method, wire.query)
            case "POST", ["migrations", name, command] if command in COMMANDS:
                return await self._command(wire, name, command)
        return _refused(wire, names)

    async def _page(self, name: str) -> tuple[int, Document]:
        if name == "stock":
            return self.stock()
        if name == "config":
            return 200, self.config()
        return 200, await self.status() if name == "status" else {"migrations": self.migrations()}

    async def status(self) -> Document:
        """Return the status with the traffic of the last minute and the weights of targets."""
        status = await self._sources.status()
        self._window.update(await self._sources.families())
        config = self._sources.control.effective_config()
        return {
            **status,
            "traffic": self._window.document(),
            "weights": weights_in_force(config, self._sources.cutover),
            "runtime": self._sources.control.runtime(),
        }

    def stock(self) -> tuple[int, Document]:
        """Return who calls what; status 404 where nothing is counted."""
        return self._sources.control.stock()

    def config(self) -> Document:
        """Return the configuration in force, without secrets."""
        return self._sources.control.config()[1]

    def migrations(self) -> list[Document]:
        """Return a line for each migration."""
        return [_summary(document) for document in map(self.migration, self._names()) if document]

    def migration(self, name: str) -> Document | None:
        """Return evidence and cut-over of a migration; None if there is none of this name."""
        if name not in self._names():
            return None
        config = MIGRATIONS.of(self._sources.control.effective_config()).get(name)
        evidence, cutover = self._sources.evidence, self._sources.cutover
        return {
            "name": name,
            "plan": None if config is None else config.model_dump(mode="json"),
            "evidence": None if evidence is None else evidence.evidence.get(name),
            "cutover": None if cutover is None else cutover.document(name),
        }

    def _names(self) -> list[str]:
        evidence = self._sources.evidence
        found = () if evidence is None else tuple(evidence.evidence)
        configured = MIGRATIONS.of(self._sources.control.effective_config())
        return list(dict.fromkeys((*configured, *found)))

    def _known(self, name: str) -> tuple[int, Document]:
        document = self.migration(name)
        if document is None:
            return 404, {"error": self._unknown(name)}
        return 200, document

    def _verdict(self, name: str, method: str, query: str) -> tuple[int, Document]:
        """Return the verdict of all guards of a migration, with the status of `?as=`."""
        form = dict(parse_qsl(query, keep_blank_values=True)).get("as")
        if form is not None and form not in _VERDICT_FORMS:
            forms = ", ".join(_VERDICT_FORMS)
            return 400, {"error": f"unknown form {form!r}; expected 'as' to be one of {forms}"}
        if form is not None:
            statuses = _VERDICT_FORMS[form]
        else:
            statuses = _POSTED_VERDICT if method == "POST" else {}
        document = self.migration(name)
        if document is None:
            return 404, {"error": self._unknown(name)}
        cutover = self._sources.cutover
        found = None if cutover is None else cutover.verdict(name)
        if found is None:
            guards = guards_of(document)
            standing = Standing(verdict_of(guards))
            found = standing, {"migration": name, "verdict": standing.value, "guards": guards}
        return statuses.get(found[0], 200), found[1]

    def _unknown(self, name: str) -> str:
        names = ", ".join(self._names()) or "none: 'migrations' is not configured"
        return f"unknown migration {name!r}; expected one of {names}"

    async def _sample(self, name: str, sample: str) -> tuple[int, Document]:
        if name not in self._names():
            return 404, {"error": self._unknown(name)}
        evidence = self._sources.evidence
        document = None if evidence is None else await evidence.sample(name, sample)
        if document is None:
            return 404, {"error": f"sample {sample!r} is not kept (any more)"}
        return 200, document

    async def _command(self, wire: HttpRequest, name: str, command: str) -> tuple[int, Document]:
        cutover = self._sources.cutover
        if cutover is None:
            text = f"migration {name!r} has no cut-over; expected 'cutover' in the configuration"
            return 404, {"error": text}
        if wire.size_bytes > _MAX_BODY:
            return 413, {"error": f"body has {wire.size_bytes} bytes; at most {_MAX_BODY}"}
        try:
            body = msgspec.json.decode(bytes(wire.view) or b"{}", type=_CommandBody)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return 400, {"error": str(error)}
        try:
            document = await cutover.command(name, command, body.at_step)
        except LookupError as error:
            return 404, {"error": str(error.args[0])}
        except ValueError as error:
            return 409, {"error": str(error)}
        return 200, {"ok": True, "cutover": document}

    async def _changes(self) -> Mapping[str, Any]:
        status = await self.status()
        return {
            "status": {key: status[key] for key in ("ready", "reason", "traffic", "weights")},
            "migrations": self.migrations(),
        }


def json_response(status: int, document: object, *headers: tuple[str, str]) -> HttpResponse:
    """Return a document that no browser stores or takes for anything else."""
    fields = Headers((*_JSON.pairs, *headers)) if headers else _JSON
    return HttpResponse(status, fields, (orjson.dumps(document, default=str),))


def _parts(response: HttpResponse) -> Iterable[HttpResponse]:
    """Yield a response in parts: a large sample is sent with little memory at a time."""
    view = response.view
    if len(view) <= _PART_BYTES:
        yield response
        return
    for first in range(0, len(view), _PART_BYTES):
        yield HttpResponse(response.status, response.headers, (view[first : first + _PART_BYTES],))


def guards_of(migration: Document) -> list[Document]:
    """Return the guards of a migration: those of its cut-over, or else of its evidence.

    A cut-over has `errors.clients`, too, which comparisons do not know.
    """
    cutover, evidence = migration["cutover"] or {}, migration["evidence"] or {}
    guards: list[Document] = cutover.get("guards") or evidence.get("guards", [])
    return guards


def verdict_of(guards: Iterable[Document]) -> str:
    """Return one verdict for all guards: one that trips decides, then one that is undecided."""
    found = {guard["verdict"] for guard in guards}
    if Standing.TRIPS.value in found:
        return Standing.TRIPS.value
    return Standing.HOLDS.value if found == {Standing.HOLDS.value} else Standing.UNDECIDED.value


# Flagger's hooks are POST and read statuses alone. Those written for an earlier version name no
# form and keep its statuses, so that none of them opens a gate.
_POSTED_VERDICT: Final[Mapping[Standing, int]] = {Standing.UNDECIDED: 409, Standing.TRIPS: 409}
# The statuses other than 200, by the form of the verdict.
_VERDICT_FORMS: Final[Mapping[str, Mapping[Standing, int]]] = {
    "gate": {Standing.UNDECIDED: 403, Standing.TRIPS: 403},
    "rollback": {Standing.HOLDS: 403, Standing.UNDECIDED: 403},
    "check": {Standing.TRIPS: 403},
}

_PATHS: Final = (
    "/api/v1/status",
    "/api/v1/config",
    "/api/v1/stock",
    "/api/v1/events",
    "/api/v1/migrations",
    "/api/v1/migrations/NAME",
    "/api/v1/migrations/NAME/verdict?as={gate,rollback,check}",
    "/api/v1/migrations/NAME/samples/ID",
    f"/api/v1/migrations/NAME/{{{','.join(COMMANDS)}}} (POST)",
)


_PAGES: Final = frozenset({"status", "config", "stock", "migrations"})


def _refused(wire: HttpRequest, names: list[str]) -> tuple[int, Document]:
    if _is_known(names):
        return 405, {"error": f"method {wire.method!r} is not allowed"}
    return 404, {"error": f"unknown path {wire.path!r}; expected one of {', '.join(_PATHS)}"}


def _is_known(names: list[str]) -> bool:
    match names:
        case ["events"] | ["migrations", _] | ["migrations", _, "samples", _]:
            return True
        case ["migrations", _, name]:
            return name == "verdict" or name in COMMANDS
    return len(names) == 1 and names[0] in _PAGES


def _need(names: list[str]) -> AdminNeed:
    """Return what a path does; samples and commands are protected."""
    match names:
        case ["migrations", _, "verdict"]:
            return AdminNeed.VERDICT
        case [_] | ["migrations", _]:
            return AdminNeed.READ
    return AdminNeed.PROTECTED


def weights_in_force(config: Config, cutover: CutoverSource | None) -> dict[str, dict[str, float]]:
    """Return the weight of each target by route; percentages while a cut-over moves calls."""
    found: dict[str, dict[str, float]] = {
        ruled.name: {target_name(target): target.weight for target in ruled.config.targets}
        for ruled in ruled_routes(config)
        if ruled.config is not None
    }
    if cutover is None:
        return found
    for route, (target, percent) in cutover.moved(config).items():
        if percent:
            weights = found[route]
            share = (100 - percent) / sum(weights.values())  # the target has the weight 0
            found[route] = {
                name: percent if name == target else weight * share
                for name, weight in weights.items()
            }
    return found


def _summary(document: Document) -> Document:
    evidence, cutover = document["evidence"] or {}, document["cutover"] or {}
    compared = evidence.get("replies_compared", evidence.get("compared", 0))
    differ = sum(evidence.get("outcomes", {}).get(each, 0) for each in ("mismatch", "structure"))
    return {
        "name": document["name"],
        "state": cutover.get("state", "mirroring" if evidence else "idle"),
        "weight": cutover.get("weight"),
        "verdict": verdict_of(guards_of(document)),
        "sampled": evidence.get("sampled", 0),
        "compared": compared,
        "failed": evidence.get("failed", 0),
        "agreement": 1 - differ / compared if compared else None,
    }
