"""The pages under `/ui/` as HTML: Jinja, the frame of all pages, and what browsers load.

Nothing comes from elsewhere, and without scripts everything but tensors and buttons is there. A
template stands beside the code of its page; `templates` has what all pages share.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from gateway.api.admin import AdminRequest, AdminRoute, Content, Json, Page
from gateway.ir.texts import utc_text, visible

if TYPE_CHECKING:
    from jinja2 import Environment

UI: Final = "/ui/"

_HERE: Final = Path(__file__).parent
_STATIC: Final = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def render(page: Page, route: AdminRoute | None, menu: Sequence[tuple[str, str]]) -> bytes:
    """Return a page of a route as HTML.

    Args:
        page: What it shows.
        route: It is where the template is looked for; None for a template of all pages.
        menu: Path and name of each page in the menu.
    """
    folder = None if route is None else _folder_of(route.handle)
    frame: dict[str, Any] = {"pages": menu}
    if route is not None:
        frame |= {"title": route.menu or route.summary, "page": route.path}
    template = _environment(folder).get_template(page.template)
    return template.render({**frame, **page.values}).encode()


def _folder_of(handle: Callable[..., Any]) -> Path | None:
    """Return the folder of the module that has a function; None if it has none."""
    module = sys.modules[getattr(handle, "func", handle).__module__]  # `func` of a partial
    return None if module.__file__ is None else Path(module.__file__).parent


@functools.cache
def _environment(folder: Path | None) -> Environment:
    """Return what renders: everything is escaped, and characters without a glyph are spelt out."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  # 10 ms

    own = () if folder is None else (folder, folder.parent)
    environment = Environment(
        loader=FileSystemLoader([*own, _HERE / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters["utc"] = lambda at_us: utc_text(int(at_us or 0))
    return environment


def _printable(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


async def static(request: AdminRequest) -> Content | Json:
    """Return what a page loads."""
    name = request.names["file"]
    kind = _STATIC.get(name)
    if kind is None:
        return Json({"error": f"unknown file {name!r}"}, 404)
    return Content(await asyncio.to_thread((_HERE / "static" / name).read_bytes), kind)


ROUTES: Final = (
    AdminRoute(
        path="/ui/static/{file}", handle=static, summary="Style, script and icon of the pages."
    ),
)
