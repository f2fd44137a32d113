"""The commands `reload`, `upstream` and `route`, which change a running gateway."""

import enum
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection
from inspect import Parameter
from typing import Annotated, Any, NoReturn, Self, TypeVar

import typer

from gateway.cli.flag_groups import flag, with_flags
from gateway.cli.liveness import DEFAULT_ADMIN, HTTPS, UNIX, unix_connection
from gateway.cli.output import WRONG_USAGE, fail, print_json, print_note
from gateway.transports.net.tls import ClientTls, client_context

C = TypeVar("C", bound=Callable[..., Any])

TOKEN_VARIABLE = "GATEWAY_ADMIN_TOKEN"  # noqa: S105  # its name
"""The environment variable with the token for the admin port of another machine."""
# A reload loads models.
_TIMEOUT_S = 600.0
# A page is made from what the gateway has at hand.
_PAGE_TIMEOUT_S = 5.0
_OK = 200
_NOT_FOUND = 404

_ADDRESS = re.compile(r"unix:/.+|(?:https?://)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}/?")


class AdminAddress(str):
    """The address of an admin port, as users write it.

    Attributes:
        tls_ca: File with its authorities; None for those of the system.
    """

    __slots__ = ("tls_ca",)
    tls_ca: str | None

    def __new__(cls, text: str, tls_ca: str | None = None) -> Self:
        """Return an address."""
        address = super().__new__(cls, text)
        address.tls_ca = tls_ca
        return address


def _option(*names: str, metavar: str, text: str) -> Parameter:
    option = typer.Option(*names, metavar=metavar, help=text)
    return flag(names[0].strip("-").replace("-", "_"), Annotated[str | None, option])


def asks_admin(
    metavar: str | None = "[ADDR]", text: str = "Admin address of the gateway."
) -> Callable[[C], C]:
    """Return a decorator of commands whose parameter `admin` is the address of an admin port.

    Users write it as an argument or as `--admin ADDR`, and `--tls-ca FILE` for its authorities.

    Args:
        metavar: Of the argument; None for a command without, whose arguments are repeated.
        text: What the argument is.
    """
    shown = typer.Argument(metavar=metavar, help=f"{text} Default {DEFAULT_ADMIN}.")
    argument = (flag("address", Annotated[str | None, shown]),) if metavar else ()
    return with_flags("admin", (*argument, *_ADMIN_FLAGS), _chosen)


def _chosen(admin: str | None, tls_ca: str | None, address: str | None = None) -> AdminAddress:
    return AdminAddress(_only_one(address, admin), tls_ca)


_ADMIN_FLAGS = (
    _option("--admin", metavar="ADDR", text="Admin address of the gateway."),
    _option("--tls-ca", metavar="FILE", text="Authorities of an https:// admin address."),
)


def _only_one(address: str | None, admin: str | None) -> str:
    """Return the address that users gave; fail for two different ones."""
    if address is not None and admin not in {None, DEFAULT_ADMIN, address}:
        fail(f"two admin addresses: {address} and {admin}; expected one", WRONG_USAGE)
    return address or admin or DEFAULT_ADMIN


def split_address(words: Sequence[str], admin: str) -> tuple[list[str], str]:
    """Return repeated arguments without the address among them, and the address."""
    found = [word for word in words if _ADDRESS.fullmatch(word)]
    rest = [word for word in words if word not in found]
    for word in found:
        admin = AdminAddress(_only_one(word, admin), getattr(admin, "tls_ca", None))
    return rest, admin


class UpstreamAction(enum.Enum):
    """What happens to the endpoints of an upstream."""

    DRAIN = "drain"
    ENABLE = "enable"


class RouteAction(enum.Enum):
    """What happens to the weights of a route."""

    WEIGHTS = "weights"
    RESET = "reset"


@asks_admin()
def reload(admin: str) -> None:
    """Make a running gateway read its configuration file again.

    Exit status: 0 applied, 1 refused, with the errors of the file; 2 usage error.

    Example: gateway reload 127.0.0.1:9901
    """
    found = post_document(admin, "/reload", {})
    print_json(found["changes"] | {"certificates": found["certificates"]})
    for line in found.get("runtime", {}).get("lines", ()):
        print_note(f"still changed at run time: {line}")


@asks_admin()
def upstream(
    action: Annotated[UpstreamAction, typer.Argument(help="Send no new calls, or send them.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME[/ENDPOINT]", help="Upstream, or one of its addresses.")
    ],
    admin: str,
) -> None:
    """Stop new calls to an upstream or one of its endpoints, or allow them again.

    Calls and sequences in progress finish. Reloads keep the change; a restart ends it.
    Exit status: 0 success, 1 failure, 2 usage error.

    Example: gateway upstream drain triton/10.0.0.7:8001
    """
    post_change(admin, f"/upstream/{action.value}", {"name": name})


@asks_admin(metavar=None)
def route(
    action: Annotated[RouteAction, typer.Argument(help="Set weights, or use those of the file.")],
    name: Annotated[str, typer.Argument(metavar="ROUTE")],
    weights: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET=WEIGHT]... [ADDR]", help="Such as server-a=90 server-b=10."
        ),
    ] = None,
    admin: str = DEFAULT_ADMIN,
) -> None:
    """Change the weights of a route's targets, or reset them to those of the file.

    Reloads keep the change; a restart ends it. Exit status: 0 success, 1 failure, 2 usage error.

    Example: gateway route weights fraud triton=90 next=10
    """
    weights, admin = split_address(weights or (), admin)
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


def get_traffic(admin: str) -> dict[str, Any]:
    """Return the traffic of the last minute; fail with the error of the admin port."""
    path = "/api/v1/status"
    status, body = _request(admin, "GET", path, timeout_s=_PAGE_TIMEOUT_S)
    if status == _NOT_FOUND:
        _fail(admin, f"status {status} for {path}")
    traffic: dict[str, Any] = _read_json(admin, (status, body))["traffic"]
    return traffic


def get_metrics(admin: str) -> str:
    """Return the metrics page of the admin port; fail with its error."""
    return _get_page(admin, "/metrics").decode(errors="replace")


def is_live(admin: str, timeout_s: float) -> bool:
    """Return whether the process at the admin port is alive; fail if it cannot be reached."""
    return _request(admin, "GET", "/livez", timeout_s=timeout_s)[0] == _OK


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
    try:
        with closing(_connection(admin, timeout_s)) as connection:
            connection.request(method, path, body, _headers())
            response = connection.getresponse()
            return response.status, response.read()
    except BadStatusLine:
        _fail(admin, "the server does not speak HTTP/1")
    except (OSError, HTTPException, ValueError) as error:
        _fail(admin, str(error))


def _connection(admin: str, timeout_s: float) -> HTTPConnection:
    """Return a connection to an address, which may stand there as in a browser."""
    if admin.startswith(UNIX):
        return _UnixConnection(admin.removeprefix(UNIX), timeout_s)
    address = admin.removeprefix("http://").removeprefix(HTTPS).rstrip("/")
    if not admin.startswith(HTTPS):
        return HTTPConnection(address, timeout=timeout_s)
    trusted = client_context(ClientTls(ca=getattr(admin, "tls_ca", None)))
    return HTTPSConnection(address, timeout=timeout_s, context=trusted)


class _UnixConnection(HTTPConnection):
    """A connection to a unix socket.

    Args:
        path: The path of the socket.
        timeout_s: The longest time of each step.
    """

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = unix_connection(self._path, self.timeout)


def _fail(admin: str, reason: str) -> NoReturn:
    fail(f"no admin port of a gateway at {admin}: {reason}; expected the address of its `admin`")
