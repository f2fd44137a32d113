"""The command `health`, which probes of containers run every few seconds, and options of clients.

It imports the client of the other commands only where `readiness.py` does not suffice.
"""

from typing import Annotated, Any, Final

import typer

from gateway.cli.calling.liveness import DEFAULT_ADMIN, HTTPS, print_live, run_live
from gateway.cli.calling.readiness import ask_ready
from gateway.cli.calling.server_flags import ServerFlags, server_flags
from gateway.cli.output import (
    FAILED,
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    parse_or_fail,
    print_json,
    print_note,
    print_text,
)
from gateway.ir.errors import GatewayError
from gateway.settings.units import parse_duration, parse_url

DEFAULT_URL: Final = "oip+http://127.0.0.1:8000"
NO_FLAGS: Final = ServerFlags()

UrlArgument = Annotated[
    str, typer.Argument(metavar="[URL]", help="Address and protocol.", show_default=True)
]
TimeoutOption = Annotated[str, typer.Option(metavar="TIME", help="Timeout, such as 500ms.")]
VersionOption = Annotated[str, typer.Option(help="Version of the model; any by default.")]


@server_flags
def health(  # noqa: PLR0913, PLR0917  # one for each flag
    url: UrlArgument = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Check this model instead.")] = None,
    version: VersionOption = "",
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Check instead that a gateway is alive, whatever its servers do: the URL is then "
            f"address of its `admin`, by default {DEFAULT_ADMIN}.",
        ),
    ] = False,
    admin: Annotated[
        str | None,
        typer.Option("--admin", metavar="ADDR", help="With --live: the address, instead of URL."),
    ] = None,
    timeout: TimeoutOption = "5s",
    server: ServerFlags = NO_FLAGS,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Check whether a server, or one of its models, is ready, or a gateway alive.

    GATEWAY_ADMIN_TOKEN has the token for --live, if the admin port needs one.

    Exit status: 0 ready, 1 not ready or unreachable, 2 usage error.

    Example: gateway health oip+grpc://127.0.0.1:8001 --model fraud
    """
    if admin is not None and not live:
        fail("--admin is only for --live; expected the URL of a server", WRONG_USAGE)
    if live:
        if admin is not None and url not in {DEFAULT_URL, admin}:
            fail(f"two admin addresses: {url} and {admin}; expected one", WRONG_USAGE)
        default = DEFAULT_ADMIN if url == DEFAULT_URL else url
        _check_live(admin or default, model, timeout, server, output)
        return
    name = "server" if model is None else f"model {model}"
    address, timeout_s = parse_or_fail(parse_url, url), parse_or_fail(parse_duration, timeout)
    try:
        ready = ask_ready(address, model, version, timeout_s, server)
    except GatewayError as error:
        fail(f"{address}: {error.message} ({error.code.value})")
    if ready is None:
        ready = _ask(url, model, version, timeout, server)
    if output is OutputFormat.JSON:
        print_json({"ready": ready})
    else:
        print_text("ready" if ready else "not ready")
    if not ready:
        print_note(f"gateway: {name} at {url} is not ready")
        raise typer.Exit(FAILED)


def _check_live(
    address: str, model: str | None, timeout: str, server: ServerFlags, output: OutputFormat
) -> None:
    """Ask as `liveness` does, for the flags that it does not read, and over TLS."""
    if model is not None or output is OutputFormat.JSON:
        flag = "--output json" if model is None else "--model"
        fail(f"{flag} is not allowed with --live", WRONG_USAGE)
    timeout_s = parse_or_fail(parse_duration, timeout)
    if address.startswith(HTTPS):
        from gateway.cli.admin import AdminAddress, is_live  # noqa: PLC0415  # rarely

        ca = None if server.tls is None else server.tls.ca
        raise typer.Exit(print_live(is_live(AdminAddress(address, ca), timeout_s)))
    raise typer.Exit(run_live(address, timeout_s))


def _ask(url: str, model: str | None, version: str, timeout: str, server: ServerFlags) -> bool:
    """Ask with the client of all protocols."""
    from gateway.cli.calling.client import run_client  # noqa: PLC0415  # slow to import
    from gateway.ir.calls import ModelReadyRequest, ServerReadyRequest  # noqa: PLC0415
    from gateway.ir.context import ModelRef  # noqa: PLC0415

    async def request(service: Any, context: Any) -> bool:
        if model is None:
            found: bool = await service(ServerReadyRequest(context=context))
        else:
            found = await service(
                ModelReadyRequest(model=ModelRef(model, version), context=context)
            )
        return found

    return run_client(url, timeout, request, server)
