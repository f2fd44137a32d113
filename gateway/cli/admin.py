"""The commands `reload`, `upstream` and `route`, which change a running gateway."""

import enum
import json
import os
from collections.abc import Mapping
from contextlib import closing
from http.client import BadStatusLine, HTTPConnection, HTTPException
from typing import Annotated, Any, NoReturn

import typer

from gateway.cli.output import WRONG_USAGE, fail, print_json

DEFAULT_ADMIN = "127.0.0.1:9901"
TOKEN_VARIABLE = "GATEWAY_ADMIN_TOKEN"  # noqa: S105  # its name
"""The environment variable with the token for the admin port of another machine."""
# A reload loads models.
_TIMEOUT_S = 600.0
# A page is made from what the gateway has at hand.
_PAGE_TIMEOUT_S = 5.0
_OK = 200

AdminOption = Annotated[
    str, typer.Option("--admin", metavar="ADDR", help="Admin address of the gateway.")
]


class UpstreamAction(enum.Enum):
    """What happens to the endpoints of an upstream."""

    DRAIN = "drain"
    ENABLE = "enable"


class RouteAction(enum.Enum):
    """What happens to the weights of a route."""

    WEIGHTS = "weights"
    RESET = "reset"


def reload(admin: AdminOption = DEFAULT_ADMIN) -> None:
    """Make a running gateway read its configuration file again.

    Exit status: 0 applied, 1 refused, with the errors of the file; 2 usage error.
    """
    found = post_document(admin, "/reload", {})
    print_json(found["changes"] | {"certificates": found["certificates"]})


def upstream(
    action: Annotated[UpstreamAction, typer.Argument(help="Send no new calls, or send them.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME[/ENDPOINT]", help="Upstream, or one of its addresses.")
    ],
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Stop new calls to an upstream or one of its endpoints, or allow them again.

    Calls and sequences in progress finish. Reloads keep the change; a restart ends it.
    Exit status: 0 success, 1 failure, 2 usage error.
    """
    post_change(admin, f"/upstream/{action.value}", {"name": name})


def route(
    action: Annotated[RouteAction, typer.Argument(help="Set weights, or use those of the file.")],
    name: Annotated[str, typer.Argument(metavar="ROUTE")],
    weights: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TARGET=WEIGHT]...", help="Such as server-a=90 server-b=10."),
    ] = None,
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Change the weights of a route's targets, or reset them to those of the file.

    Reloads keep the change; a restart ends it. Exit status: 0 success, 1 failure, 2 usage error.
    """
    if bool(weights) is (action is RouteAction.RESET):
        fail("expected 'weights ROUTE TARGET=WEIGHT ...', or 'reset ROUTE'", WRONG_USAGE)
    found = dict(_weight(text) for text in weights or ()) or None
    post_change(admin, "/route/weights", {"route": name, "weights": found})


def _weight(text: str) -> tuple[str, int]:
    target, equals, weight = text.rpartition("=")
    if not equals or not target or not (weight.isascii() and weight.isdecimal()):
        fail(f"weight is {text!r}; expected TARGET=WEIGHT", WRONG_USAGE)
    return target, int(weight)


def post_change(admin: str, path: str, document: Mapping[str, Any]) -> None:
    """Send a request to the admin port, and print what changed; fail with its error."""
    print_json(_read_json(admin, _request(admin, "POST", path, json.dumps(document)))["changes"])


def get_document(admin: str, path: str) -> dict[str, Any]:
    """Return a document of the admin port; fail with its error."""
    return _read_json(admin, _request(admin, "GET", path))


def post_document(admin: str, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Send a document to the admin port and return the response; fail with its error."""
    return _read_json(admin, _request(admin, "POST", path, json.dumps(document)))


def get_status(admin: str) -> dict[str, Any]:
    """Return the status page of the admin port; fail with its error."""
    return _read_json(admin, (_OK, _get_page(admin, "/status")))


def get_metrics(admin: str) -> str:
    """Return the metrics page of the admin port; fail with its error."""
    return _get_page(admin, "/metrics").decode(errors="replace")


def _get_page(admin: str, path: str) -> bytes:
    status, body = _request(admin, "GET", path, timeout_s=_PAGE_TIMEOUT_S)
    if status != _OK:
        _fail(admin, f"status {status} for {path}")
    return body


def _read_json(admin: str, response: tuple[int, bytes]) -> dict[str, Any]:
    status, body = response
    try:
        reply: dict[str, Any] = json.loads(body)
    except ValueError as error:
        _fail(admin, f"status {status} and no JSON: {error}")
    if status != _OK:
        fail(str(reply.get("error", f"status {status}")))
    return reply


def _headers() -> dict[str, str]:
    """Return what the admin port wants from a command."""
    token = os.environ.get(TOKEN_VARIABLE)
    bearer = {"authorization": f"Bearer {token}"} if token else {}
    return {"x-gateway-admin": "gateway", **bearer}


def _request(
    admin: str, method: str, path: str, body: str = "", timeout_s: float = _TIMEOUT_S
) -> tuple[int, bytes]:
    address = admin.removeprefix("http://").rstrip("/")  # as it stands in a browser
    try:
        with closing(HTTPConnection(address, timeout=timeout_s)) as connection:
            connection.request(method, path, body, _headers())
            response = connection.getresponse()
            return response.status, response.read()
    except BadStatusLine:
        _fail(admin, "the server does not speak HTTP/1")
    except (OSError, HTTPException, ValueError) as error:
        _fail(admin, str(error))


def _fail(admin: str, reason: str) -> NoReturn:
    fail(f"no admin port of a gateway at {admin}: {reason}; expected HOST:PORT of its `admin`")
