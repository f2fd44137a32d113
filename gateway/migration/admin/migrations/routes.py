"""The routes of migrations: documents and commands for programs, pages for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.api.admin import AdminNeed, AdminRequest, AdminRoute, Json, Page
from gateway.migration.admin.migrations.documents import COMMANDS, MigrationDocuments
from gateway.migration.admin.migrations.pages import migration_view, path_of, sample_view
from gateway.migration.evidence.verdicts import Standing

_MAX_BODY: Final = 65_536

# Flagger's hooks are POST and read statuses alone. Those written for an earlier version name no
# form and keep its statuses, so that none of them opens a gate.
_POSTED_VERDICT: Final[Mapping[Standing, int]] = {Standing.UNDECIDED: 409, Standing.TRIPS: 409}
# The statuses other than 200, by the form of the verdict.
_VERDICT_FORMS: Final[Mapping[str, Mapping[Standing, int]]] = {
    "gate": {Standing.UNDECIDED: 403, Standing.TRIPS: 403},
    "rollback": {Standing.HOLDS: 403, Standing.UNDECIDED: 403},
    "check": {Standing.TRIPS: 403},
}


class _CommandBody(msgspec.Struct, forbid_unknown_fields=True):
    at_step: int | None = None


class _Handlers:
    """Answer requests about migrations.

    Args:
        documents: The migrations.
    """

    def __init__(self, documents: MigrationDocuments) -> None:
        self._documents = documents

    async def migrations(self, request: AdminRequest) -> Json:
        return Json({"migrations": self._documents.lines(request.gateway.config())})

    async def migration(self, request: AdminRequest) -> Json:
        document = self._migration(request)
        return self._unknown(request) if document is None else Json(document)

    async def verdict(self, request: AdminRequest) -> Json:
        form = request.query.get("as")
        if form is not None and form not in _VERDICT_FORMS:
            forms = ", ".join(_VERDICT_FORMS)
            return Json(
                {"error": f"unknown form {form!r}; expected 'as' to be one of {forms}"}, 400
            )
        if form is not None:
            statuses = _VERDICT_FORMS[form]
        else:
            statuses = _POSTED_VERDICT if request.method == "POST" else {}
        document = self._migration(request)
        if document is None:
            return self._unknown(request)
        standing, found = self._documents.verdict(document)
        return Json(found, statuses.get(standing, 200))

    async def sample(self, request: AdminRequest) -> Json:
        if self._migration(request) is None:
            return self._unknown(request)
        sample = request.names["sample"]
        document = await self._documents.sample(request.names["name"], sample)
        if document is None:
            return Json({"error": f"sample {sample!r} is not kept (any more)"}, 404)
        return Json(document)

    async def command(self, request: AdminRequest) -> Json:
        cutovers, name = self._documents.cutovers, request.names["name"]
        if cutovers is None:
            text = f"migration {name!r} has no cut-over; expected 'cutover' in the configuration"
            return Json({"error": text}, 404)
        size = len(request.body)
        if size > _MAX_BODY:
            return Json({"error": f"body has {size} bytes; at most {_MAX_BODY}"}, 413)
        try:
            body = msgspec.json.decode(request.body or b"{}", type=_CommandBody)
        except ValueError as error:
            return Json({"error": str(error)}, 400)
        try:
            document = await cutovers.command(name, request.path.rpartition("/")[2], body.at_step)
        except LookupError as error:
            return Json({"error": str(error.args[0])}, 404)
        except ValueError as error:
            return Json({"error": str(error)}, 409)
        return Json({"ok": True, "cutover": document})

    async def show_migrations(self, request: AdminRequest) -> Page:
        lines = self._documents.lines(request.gateway.config())
        rows = [{**each, "path": path_of(each["name"])} for each in lines]
        return Page("migrations/page.html", {"migrations": rows})

    async def show_migration(self, request: AdminRequest) -> Page:
        document = self._migration(request)
        if document is None:
            return _NO_PAGE
        return Page("migrations/migration.html", migration_view(document))

    async def show_sample(self, request: AdminRequest) -> Page:
        document = self._migration(request)
        if document is None:
            return _NO_PAGE
        return Page("migrations/sample.html", sample_view(document, request.names["sample"]))

    def _migration(self, request: AdminRequest) -> dict[str, Any] | None:
        return self._documents.migration(request.gateway.config(), request.names["name"])

    def _unknown(self, request: AdminRequest) -> Json:
        found = ", ".join(self._documents.names(request.gateway.config()))
        names = found or "none: 'migrations' is not configured"
        text = f"unknown migration {request.names['name']!r}; expected one of {names}"
        return Json({"error": text}, 404)


_NO_PAGE: Final = Page(
    "error.html", {"title": "Not found", "page": "", "text": "There is no such page."}, 404
)
_EFFECTS: Final = {
    "start": "Starts a cut-over",
    "pause": "Pauses a cut-over: weights stay as they are",
    "resume": "Resumes a cut-over",
    "approve": "Approves the next step",
    "rollback": "Sends all calls to the old target",
    "reset": "Lets state and evidence begin anew",
}


def migration_routes(documents: MigrationDocuments) -> tuple[AdminRoute, ...]:
    """Return the routes of migrations."""
    handlers = _Handlers(documents)
    api, ui = "/api/v1/migrations", "/ui/migrations"
    verdict = AdminRoute(
        path=f"{api}/{{name}}/verdict",
        open="verdict",
        handle=handlers.verdict,
        summary="The verdict of all guards. With `?as=gate`, `rollback` or `check`, the status "
        "tells it.",
    )
    return (
        AdminRoute(path=api, handle=handlers.migrations, summary="A line for each migration."),
        AdminRoute(
            path=f"{api}/{{name}}",
            handle=handlers.migration,
            summary="Plan, evidence and cut-over of a migration.",
        ),
        verdict,
        AdminRoute(
            path=verdict.path,
            method="POST",
            open="verdict",
            handle=handlers.verdict,
            summary="The same, for hooks that only post: without `?as=`, 409 unless guards hold.",
        ),
        AdminRoute(
            path=f"{api}/{{name}}/samples/{{sample}}",
            need=AdminNeed.MIGRATE,
            handle=handlers.sample,
            summary="The tensors of a kept call, of both servers.",
        ),
        *(
            AdminRoute(
                path=f"{api}/{{name}}/{command}",
                method="POST",
                need=AdminNeed.MIGRATE,
                handle=handlers.command,
                summary=f"{_EFFECTS[command]}.",
            )
            for command in COMMANDS
        ),
        AdminRoute(
            path=ui,
            menu="Migrations",
            handle=handlers.show_migrations,
            summary="A line for each migration.",
        ),
        AdminRoute(
            path=f"{ui}/{{name}}",
            handle=handlers.show_migration,
            summary="Agreement over time, guards, outputs, latencies, and buttons of the cut-over.",
        ),
        AdminRoute(
            path=f"{ui}/{{name}}/samples/{{sample}}",
            handle=handlers.show_sample,
            summary="The tensors of a kept call as pictures; a script asks for them.",
        ),
    )
