"""The commands `infer` and `models`: a small client for every protocol."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from gateway.api.start_error import reason_of
from gateway.app import connect
from gateway.cli.calling.guessed_outputs import with_datatypes
from gateway.cli.calling.health import (
    DEFAULT_URL,
    NO_FLAGS,
    TimeoutOption,
    UrlArgument,
    VersionOption,
)
from gateway.cli.calling.server_flags import ServerFlags, server_flags
from gateway.cli.calling.tensors import json_of, read_value, tensor_of
from gateway.cli.output import (
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    format_table,
    parse_or_fail,
    print_json,
    print_text,
)
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    RepositoryIndexRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import GatewayError, InvalidTensor
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.policies.complete.policy import Complete
from gateway.service import Service
from gateway.settings.units import Url, parse_duration, parse_url

R = TypeVar("R")


@server_flags
def infer(  # noqa: PLR0913, PLR0917  # one for each flag
    target: Annotated[
        list[str], typer.Argument(metavar="[URL] MODEL", help=f"URL by default: {DEFAULT_URL}.")
    ],
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="VALUE is JSON, or @FILE for JSON in a file; repeatable.",
        ),
    ],
    outputs: Annotated[
        list[str] | None,
        typer.Option("--request", "-r", metavar="NAME", help="Request only this output."),
    ] = None,
    datatypes: Annotated[
        list[str] | None,
        typer.Option(
            "--datatype",
            metavar="NAME=DATATYPE",
            help="Datatype of an input, instead of the one in the model's metadata.",
        ),
    ] = None,
    version: VersionOption = "",
    timeout: TimeoutOption = "30s",
    server: ServerFlags = NO_FLAGS,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Run one inference and print its outputs.

    Datatypes come from the model's metadata. The nesting of VALUE is the shape; a flat list gets
    the shape of the metadata if at most one of its dimensions is variable.

    Example: gateway infer oip+grpc://127.0.0.1:8001 sum -i X=[1,2]
    """
    if len(target) > 2:  # noqa: PLR2004  # URL and MODEL
        fail(f"too many arguments: {len(target)}; expected [URL] MODEL", WRONG_USAGE)
    url = target[0] if len(target) > 1 else DEFAULT_URL
    model = ModelRef(target[-1], version)
    values = _values(inputs)
    chosen = {name: _datatype(text) for name, text in map(_pair_of("--datatype"), datatypes or ())}
    requested = tuple(RequestedOutput(name) for name in outputs or ())

    async def request(service: Service, context: Context) -> InferResponse:
        metadata = ModelMetadata(name=model.name)
        if not values.keys() <= chosen.keys():
            metadata = await service(ModelMetadataRequest(model=model, context=context))
        tensors = _tensors(values, chosen, metadata)
        call = InferRequest(model=model, context=context, inputs=tensors, outputs=requested)
        return await service(call)

    _print_reply(run_client(url, timeout, request, server), output)


_QUESTION_TIMEOUT = "10s"
_LOAD_TIMEOUT = "10m"


@server_flags
def models(
    url: UrlArgument = DEFAULT_URL,
    load: Annotated[
        str | None,
        typer.Option("--load", metavar="NAME", help="Load a model, or load it again; list none."),
    ] = None,
    timeout: TimeoutOption = _QUESTION_TIMEOUT,
    server: ServerFlags = NO_FLAGS,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """List a server's models with their versions and states, or load one.

    A load waits for ten minutes, unless `--timeout` is set.

    Example: gateway models oip+http://127.0.0.1:8000
    """
    if load is not None:
        _load(url, load, _LOAD_TIMEOUT if timeout == _QUESTION_TIMEOUT else timeout, server)
        return

    async def request(service: Service, context: Context) -> Any:
        return await service(RepositoryIndexRequest(context=context))

    entries = run_client(url, timeout, request, server)
    rows = [(entry.name, entry.version, entry.state.value, entry.reason) for entry in entries]
    if output is OutputFormat.JSON:
        keys = ("name", "version", "state", "reason")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        print_text(format_table(("model", "version", "state", "reason"), rows))


def _load(url: str, name: str, timeout: str, server: ServerFlags) -> None:
    async def request(service: Service, context: Context) -> None:
        await service(ModelLoadRequest(model=ModelRef(name), context=context))

    run_client(url, timeout, request, server)
    print_text(f"{name} is loaded")


# The model's metadata completes protocols that do not send names, datatypes or shapes.
_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def run_client(
    url: str,
    timeout: str,
    request: Callable[[Service, Context], Awaitable[R]],
    server: ServerFlags = NO_FLAGS,
) -> R:
    """Connect, run *request*, and close; an error ends the command with one line."""
    address, timeout_s = parse_or_fail(parse_url, url), parse_or_fail(parse_duration, timeout)
    try:
        return asyncio.run(_connect_and_run(address, timeout_s, request, server))
    except LookupError as error:
        fail(str(error.args[0]), WRONG_USAGE)
    except GatewayError as error:
        fail(f"{address}: {error.message} ({error.code.value})")


async def _connect_and_run(
    url: Url,
    timeout_s: float,
    request: Callable[[Service, Context], Awaitable[R]],
    server: ServerFlags,
) -> R:
    try:
        connected = connect(url, tls=server.tls)
    except (ValueError, OSError) as error:  # of a file
        fail(reason_of(error), WRONG_USAGE)
    try:
        context = Context(
            deadline=time.monotonic() + timeout_s, needs=_NEEDS, metadata=server.metadata
        )
        inner = with_datatypes(connected.service, connected.needs)
        return await request(Complete(inner, connected.needs), context)
    finally:
        await connected.close()


def _values(texts: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in map(_pair_of("--input"), texts):
        if name in values:
            fail(f"duplicate --input {name!r}; expected one per input", WRONG_USAGE)
        values[name] = parse_or_fail(read_value, text, f"--input {name}")
    return values


def _pair_of(flag: str) -> Callable[[str], tuple[str, str]]:
    def pair(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            fail(f"{flag} is {text[:40]!r}; expected NAME=VALUE", WRONG_USAGE)
        return name, value

    return pair


def _datatype(text: str) -> Datatype:
    try:
        return Datatype(text)
    except ValueError:
        names = ", ".join(datatype.name for datatype in Datatype)
        fail(f"--datatype is {text!r}; expected one of {names}", WRONG_USAGE)


def _tensors(
    values: dict[str, Any], chosen: dict[str, Datatype], metadata: ModelMetadata
) -> tuple[Tensor, ...]:
    declared = {tensor.name: tensor for tensor in metadata.inputs}
    tensors = []
    for name, value in values.items():
        entry = declared.get(name)
        datatype = chosen.get(name) or (None if entry is None else entry.datatype)
        if datatype is None:
            inputs = ", ".join(declared) or "none in its metadata"
            raise InvalidTensor(
                f"model {metadata.name!r} has no input {name!r}; its inputs are {inputs}"
            )
        tensors.append(tensor_of(name, value, datatype, None if entry is None else entry.shape))
    return tuple(tensors)


def _print_reply(reply: InferResponse, output: OutputFormat) -> None:
    try:
        tensors = [json_of(tensor) for tensor in reply.outputs]
    except GatewayError as error:
        fail(f"cannot print the outputs: {error.message}")
    if output is OutputFormat.JSON:
        print_json({"model": reply.model.name, "version": reply.model.version, "outputs": tensors})
        return
    rows = [
        (entry["name"], entry["datatype"], str(entry["shape"]), _short(entry["data"]))
        for entry in tensors
    ]
    print_text(format_table(("output", "datatype", "shape", "data"), rows))


_WIDTH = 100


def _short(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=False)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}... (complete with --output json)"
