"""The command `init`: a first configuration, with comments."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.calling.client import run_client
from gateway.cli.configuration import load_checked_mapping
from gateway.cli.output import FAILED, WRONG_USAGE, fail, print_note, print_text
from gateway.cli.serving.serve import AdminOption, GrpcOption, HttpOption
from gateway.cli.serving.sidecar import (
    DEFAULT_GRPC,
    DEFAULT_HTTP,
    admin_config,
    listener_config,
    sidecar_config,
)
from gateway.config.load import ConfigError
from gateway.config.starter import FoundServer, starter_text
from gateway.ir.calls import ModelMetadataRequest, RepositoryIndexRequest, ServerMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.service import Service
from gateway.settings.units import parse_url

_MODELS_ASKED = 100
_SUFFIXES = {".onnx": "onnx", ".pt": "torch", ".pt2": "torch"}
_SILENT = frozenset({ErrorCode.UNSUPPORTED, ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN})
"""Errors of a server that is there, but does not tell."""


def init(  # noqa: PLR0913  # one for each flag
    *,
    from_: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="URL", help="A running server to ask for its models; repeatable."
        ),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A server to use without asking it; repeatable."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH", help="A model file or folder for the gateway to run; repeatable."
        ),
    ] = None,
    http: HttpOption = None,
    grpc: GrpcOption = None,
    admin: AdminOption = None,
    default_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model of requests that name none.")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="For the server to reply.")] = "5s",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="New file; standard output by default.", dir_okay=False),
    ] = None,
) -> None:
    """Write a configuration with comments, for servers, model files, or both.

    `gateway init --from oip+grpc://HOST:PORT -o gateway.yaml` asks a running server for its models.
    Exit status: 0 success, 1 a server does not reply or the file exists, 2 usage error.

    Example: gateway init --from oip+grpc://127.0.0.1:9001 -o gateway.yaml
    """
    urls = [*(from_ or ()), *(upstream or ())]
    if not urls and not model:
        fail("nothing to serve; expected --from URL, --upstream URL or --model NAME=PATH", 2)
    if out is not None and out.exists():
        fail(f"{out} exists; remove it, or choose another file", FAILED)
    models = dict(map(_model, model or ()))
    try:
        for url in urls:
            parse_url(url)
        config = _config(urls, models, http=http, grpc=grpc, default_model=default_model)
        config |= admin_config(admin)
        load_checked_mapping(config)
    except ValueError as error:
        fail(str(error), WRONG_USAGE)
    except ConfigError as error:
        fail(f"the configuration is invalid:\n{error}", WRONG_USAGE)
    names = list(config.get("upstreams", ()))
    question = partial(_question, default_model or "")
    servers = {
        name: run_client(url, timeout, question)
        for name, url in zip(names, from_ or (), strict=False)
    }
    text = starter_text(config, servers)
    if out is None:
        print_text(text.rstrip())
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror}")
    print_text(f"{out} written; next: gateway serve {out}")


def _model(text: str) -> tuple[str, dict[str, Any]]:
    name, equals, place = text.partition("=")
    path = Path(place)
    if not equals or not name or not place:
        fail(f"--model is {text!r}; expected NAME=PATH", WRONG_USAGE)
    files = [path] if path.is_file() else sorted(path.glob("*/model.*"))
    backends = [_SUFFIXES[each.suffix] for each in files if each.suffix in _SUFFIXES]
    if not backends:
        fail(
            f"--model {name}: {place} is not a model; expected a file .onnx, .pt or .pt2, or "
            "a folder with VERSION/model.onnx",
            WRONG_USAGE,
        )
    return name, {"backend": backends[-1], "path": str(path.absolute())}


def _config(
    urls: list[str],
    models: dict[str, dict[str, Any]],
    *,
    http: str | None,
    grpc: str | None,
    default_model: str | None,
) -> dict[str, Any]:
    """Return the values of the configuration.

    Raises:
        ValueError: A URL is invalid, or all listeners are off.
    """
    if urls:
        config = sidecar_config(urls, http=http, grpc=grpc, default_model=default_model)
    else:
        listener = listener_config(http=http or DEFAULT_HTTP, grpc=grpc or DEFAULT_GRPC)
        if default_model is not None:
            listener["default_model"] = default_model
        config = {"version": "1", "listeners": [listener]}
    return config | ({"models": models} if models else {})


async def _question(model: str, service: Service, context: Context) -> FoundServer:
    """Return what a server tells.

    Args:
        model: What to ask for if the server does not list its models; "" for its only model.
        service: The server.
        context: The context of the call that asks.
    """
    server = await service(ServerMetadataRequest(context=context))
    try:
        entries = await service(RepositoryIndexRequest(context=context))
        names = list(dict.fromkeys(entry.name for entry in entries))
    except GatewayError as error:
        if error.code not in _SILENT:
            raise
        print_note(f"gateway: the server does not list its models: {error.message}")
        names = [model]
    if len(names) > _MODELS_ASKED:
        print_note(f"gateway: {len(names)} models; the first {_MODELS_ASKED} are described")
    found, untold = [], []
    for name in names[:_MODELS_ASKED]:
        try:
            metadata = await service(ModelMetadataRequest(model=ModelRef(name), context=context))
        except GatewayError as error:
            if name:
                print_note(f"gateway: model {name}: {error.message}")
                untold.append(name)
            continue
        if metadata.inputs and metadata.outputs:
            found.append(metadata)
        elif name:
            untold.append(name)
    return FoundServer(f"{server.name} {server.version}".strip(), found, untold)
