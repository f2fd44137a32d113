"""The commands `reload`, `upstream` and `route`, which change a running gateway."""

import enum
import json
import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection
from inspect import Parameter
from typing import Annotated, Any, Self, TypeVar

import typer

from gateway.cli.calling.liveness import DEFAULT_ADMIN, HTTPS, TOKEN_VARIABLE, UNIX, unix_connection
from gateway.cli.flag_groups import flag, with_flags
from gateway.cli.output import WRONG_USAGE, fail, print_json, print_note
from gateway.config.admin import AdminConfig
from gateway.settings.units import Address
from gateway.transports.net.tls import ClientTls, client_context

C = TypeVar("C", bound=Callable[..., Any])
R = TypeVar("R")

# A reload loads models.
_TIMEOUT_S = 600.0
# A page is made from what the gateway has at hand.
_PAGE_TIMEOUT_S = 5.0
_OK = 200
_NOT_FOUND = 404
_REFUSED = frozenset({401, 403})
_EVERYWHERE = frozenset({"/status", "/api/v1/status"})
_SET_TOKEN = f"set the environment variable {TOKEN_VARIABLE} to the token"

_ADDRESS = re.compile(r"unix:/.+|(?:https?://)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}/?")


class AdminAddress(str):
    """The address of an admin port, as users write it.

    Attributes:
        tls_ca: File with its authorities; None for those of the system.
        is_given: Whether users wrote it; otherwise it is the default.
    """

    __slots__ = ("is_given", "tls_ca")
    tls_ca: str | None
    is_given: bool

    def __new__(cls, text: str, tls_ca: str | None = None, *, is_given: bool = True) -> Self:
        """Return an address."""
        address = super().__new__(cls, text)
        address.tls_ca = tls_ca
        address.is_given = is_given
        return address


class AdminError(Exception):
    """A question to an admin port without the wanted answer; its text is for users."""


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
    is_given = address is not None or admin is not None
    return AdminAddress(_only_one(address, admin), tls_ca, is_given=is_given)


_ADMIN_FLAGS = (
    _option(
        "--admin",
        metavar="ADDR",
        text=f"Admin address of the gateway. {TOKEN_VARIABLE} has its token, if it needs one.",
    ),
    _option("--tls-ca", metavar="FILE", text="Authorities of an https:// admin address."),
)


def _only_one(address: str | None, admin: str | None) -> str:
    """Return the address that users gave; fail for two different ones."""
    if address is not None and admin not in {None, DEFAULT_ADMIN, address}:
        fail(f"two admin addresses: {address} and {admin}; expected one", WRONG_USAGE)
    return address or admin or DEFAULT_ADMIN


def admin_of(config: AdminConfig | None, admin: AdminAddress) -> AdminAddress | None:
    """Return the address of a configuration, unless users gave another one; None for no port."""
    if admin.is_given or config is None:
        return admin
    address = config.address
    if address is None:
        return None
    text = str(address)
    if address.tcp is not None:
        tcp = address.tcp
        text = str(Address(_LOOPBACK.get(tcp.host, tcp.host), tcp.port))
    return AdminAddress(f"{HTTPS if config.tls else ''}{text}", admin.tls_ca)


_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared


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
    print_json(post_document(admin, path, document)["changes"])


def get_document(admin: str, path: str) -> dict[str, Any]:
    """Return a document of the admin port; fail with its error."""
    return _or_fail(_ask, admin, "GET", path)


def post_document(admin: str, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Send a document to the admin port and return the response; fail with its error."""
    return _or_fail(_ask, admin, "POST", path, json.dumps(document))


def get_status(admin: str) -> dict[str, Any]:
    """Return the status page of the admin port; fail with its error."""
    return _or_fail(ask_status, admin)


def ask_status(admin: str) -> dict[str, Any]:
    """Return the status page of the admin port. Raises AdminError."""
    return _ask(admin, "GET", "/status", timeout_s=_PAGE_TIMEOUT_S)


def get_traffic(admin: str) -> dict[str, Any]:
    """Return the traffic of the last minute; fail with the error of the admin port."""
    found = _or_fail(_ask, admin, "GET", "/api/v1/status", timeout_s=_PAGE_TIMEOUT_S)
    traffic: dict[str, Any] = found["traffic"]
    return traffic


def get_metrics(admin: str) -> str:
    """Return the metrics page of the admin port; fail with its error."""
    status, body = _or_fail(_request, admin, "GET", "/metrics", timeout_s=_PAGE_TIMEOUT_S)
    if status != _OK:
        fail(str(_no_gateway(admin, f"status {status} for /metrics")))
    return body.decode(errors="replace")


def is_live(admin: str, timeout_s: float) -> bool:
    """Return whether the process at the admin port is alive; fail if it cannot be reached."""
    status, _ = _or_fail(_request, admin, "GET", "/livez", timeout_s=timeout_s)
    return status == _OK


def _or_fail(ask: Callable[..., R], *arguments: Any, **options: Any) -> R:
    """Return what *ask* returns; end the command with the error that it raises."""
    try:
        return ask(*arguments, **options)
    except AdminError as error:
        fail(str(error))


def _ask(
    admin: str, method: str, path: str, body: str = "", *, timeout_s: float = _TIMEOUT_S
) -> dict[str, Any]:
    """Return the JSON of a response. Raises AdminError."""
    status, data = _request(admin, method, path, body, timeout_s)
    try:
        reply: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise _no_gateway(admin, f"status {status} and no JSON: {error}") from error
    if status != _OK:
        raise _refused(admin, path, status, reply)
    return reply


def _refused(admin: str, path: str, status: int, reply: Mapping[str, Any]) -> AdminError:
    """Return the error of a response whose status is not 200."""
    error = str(reply.get("error", ""))
    if not error or (status == _NOT_FOUND and path in _EVERYWHERE):
        return _no_gateway(admin, f"status {status} for {path}")
    if status in _REFUSED and "token" in error:
        is_set = bool(os.environ.get(TOKEN_VARIABLE))
        error += f"; {TOKEN_VARIABLE} has the token that was sent" if is_set else f"; {_SET_TOKEN}"
    return AdminError(error)


def _no_gateway(admin: str, reason: str) -> AdminError:
    return AdminError(
        f"no admin port of a gateway at {admin}: {reason}; expected the address of its `admin`"
    )


def _headers() -> dict[str, str]:
    """Return what the admin port wants from a command."""
    token = os.environ.get(TOKEN_VARIABLE)
    bearer = {"authorization": f"Bearer {token}"} if token else {}
    return {"x-gateway-admin": "gateway", **bearer}


def _request(
    admin: str, method: str, path: str, body: str = "", timeout_s: float = _TIMEOUT_S
) -> tuple[int, bytes]:
    """Return status and body of a response. Raises AdminError."""
    try:
        with closing(_connection(admin, timeout_s)) as connection:
            connection.request(method, path, body, _headers())
            response = connection.getresponse()
            return response.status, response.read()
    except BadStatusLine as error:
        raise _no_gateway(admin, "the server does not speak HTTP/1") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _no_gateway(admin, _reason_of(admin, error)) from error


def _reason_of(admin: str, error: Exception) -> str:
    """Return why an admin port does not reply; many without TLS close a handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message
        return f"certificate verify failed: {reason}; --tls-ca FILE has its authorities"
    if isinstance(error, ssl.SSLError | ConnectionError) and admin.startswith(HTTPS):
        plain = admin.removeprefix(HTTPS)
        return f"the TLS handshake failed ({error}); if it uses no TLS, use http://{plain}"
    return str(error) or type(error).__name__


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
