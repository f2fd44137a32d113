"""AdminRoute: a path of the admin port, for programs as JSON and for people as a page.

The gateway matches paths, decides who may ask, and writes the response. A route only returns what
it shows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol

from gateway.settings.config_view import ConfigView


class AdminNeed(Enum):
    """The role that a route needs.

    Attributes:
        READ: Sees what holds no payload: the status, the configuration, who calls what.
        OPERATE: Changes the gateway: reloads, drained endpoints, weights, recording.
        MIGRATE: Moves calls to another server, or sees payloads.
    """

    READ = "read"
    OPERATE = "operate"
    MIGRATE = "migrate"


@dataclass(frozen=True, slots=True)
class Json:
    """A document.

    Attributes:
        document: Values that JSON has; others are written as text.
        status: The HTTP status.
        headers: Further fields of the response.
    """

    document: Any
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A page of HTML.

    Attributes:
        template: File of a Jinja template, from the folder of the module that has the route's
            `handle`, or the folder above: "certificates/page.html". It extends `base.html`, and
            everything is escaped.
        values: What the template shows. `title` and `page`, the path in the menu, default to those
            of the route.
        status: The HTTP status.
    """

    template: str
    values: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Events:
    """Server-sent events.

    Attributes:
        events: Each with its lines and the empty line at its end.
    """

    events: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class Redirect:
    """Another address.

    Attributes:
        location: Its path.
        status: 307 for this request alone, 308 for all further ones.
    """

    location: str
    status: Literal[307, 308] = 307


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of another type, such as metrics or a picture."""

    body: bytes
    content_type: str


AdminResult = Json | Page | Events | Redirect | Content
"""What a route returns."""


class AdminGateway(Protocol):
    """The gateway, as a route sees it."""

    def config(self) -> ConfigView:
        """Return the configuration in force, with the changes that were made at run time."""

    async def status(self) -> Mapping[str, Any]:
        """Return the document of `/api/v1/status`."""

    async def plain_status(self) -> Mapping[str, Any]:
        """Return the document of `/status`, which has no traffic."""

    async def change(self, key: str, values: Mapping[str, Any], /) -> Json:
        """Change an extension at run time.

        The response has all changes that are in force, or why this one is not possible.

        Args:
            key: A key that `Extension.apply_changes` of some extension knows.
            values: Replace the change of this key before.
        """


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """One request that is allowed.

    Attributes:
        gateway: The gateway.
        method: In capitals; HEAD for a GET whose body nobody wants.
        path: The path as the client sent it, percent-encoded.
        names: The values of the path's `{name}` parts, decoded.
        query: The parameters of the query; of repeated ones the last.
        headers: The fields, by their name in lower case; of repeated ones the first.
        body: The body; empty for none.
    """

    gateway: AdminGateway
    method: str
    path: str
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRoute:
    """A path of the admin port.

    Attributes:
        path: With `{name}` for a segment of any text. `/ui/...` is for people, all else for
            programs. A HEAD request gets what a GET gets.
        handle: Returns the result. What it raises is logged, and costs only its own request.
        summary: One sentence for the documentation.
        method: Of its requests; a path may have one route for each method.
        need: The role of those who may ask.
        menu: The name in the menu of `/ui/`; "" for a path that is not in it.
        open: The group by which everybody may ask, such as "probes"; "" for none.
    """

    path: str
    handle: Callable[[AdminRequest], Awaitable[AdminResult]]
    summary: str
    method: Literal["GET", "POST"] = "GET"
    need: AdminNeed = AdminNeed.READ
    menu: str = ""
    open: str = ""
