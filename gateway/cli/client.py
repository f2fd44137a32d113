"""`gateway infer`, `gateway models`, `gateway health`: a small client of every protocol."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from gateway.app import connect
from gateway.cli.output import (
    FAILED,
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    note,
    say,
    say_json,
    table,
)
from gateway.cli.tensors import json_of, read_value, tensor_of
from gateway.config.units import Url, parse_duration, parse_url
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerReadyRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError, InvalidTensor
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensor import RequestedOutput, Tensor
from gateway.policies.complete.policy import Complete
from gateway.service import Service

DEFAULT_URL = "oip+http://127.0.0.1:8000"

R = TypeVar("R")

UrlArgument = Annotated[
    str, typer.Argument(metavar="[URL]", help="Where, and in which protocol.", show_default=True)
]
TimeoutOption = Annotated[str, typer.Option(metavar="TIME", help="Longest wait, as in 500ms.")]
VersionOption = Annotated[str, typer.Option(help="Version of the model; left out: any.")]


def infer(  # one for each flag
    place: Annotated[
        list[str], typer.Argument(metavar="[URL] MODEL", help=f"URL by default: {DEFAULT_URL}.")
    ],
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="VALUE is JSON, or @FILE for JSON in a file; may be repeated.",
        ),
    ],
    outputs: Annotated[
        list[str] | None,
        typer.Option("--request", "-r", metavar="NAME", help="Ask for this output only."),
    ] = None,
    datatypes: Annotated[
        list[str] | None,
        typer.Option(
            "--datatype",
            metavar="NAME=DATATYPE",
            help="Datatype of an input, where the server does not tell or is not to be asked.",
        ),
    ] = None,
    version: VersionOption = "",
    timeout: TimeoutOption = "30s",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Run one inference and print its outputs.

    Datatypes come from the model's metadata; shapes from the nesting of VALUE, or, for a flat
    list, from the metadata where that leaves no choice.
    """
    if len(place) > 2:  # noqa: PLR2004  # URL and MODEL
        fail(f"one URL and one MODEL are needed, found {len(place)} words", WRONG_USAGE)
    url = place[0] if len(place) > 1 else DEFAULT_URL
    model = ModelRef(place[-1], version)
    values = _values(inputs)
    known = {name: _datatype(text) for name, text in map(_pair_of("--datatype"), datatypes or ())}
    requested = tuple(RequestedOutput(name) for name in outputs or ())

    async def ask(service: Service, context: Context) -> InferResponse:
        metadata = ModelMetadata(name=model.name)
        if not values.keys() <= known.keys():
            metadata = await service(ModelMetadataRequest(model=model, context=context))
        tensors = _tensors(values, known, metadata)
        call = InferRequest(model=model, context=context, inputs=tensors, outputs=requested)
        return await service(call)

    answer = _asked(url, timeout, ask)
    _print_answer(answer, output)


def models(
    url: UrlArgument = DEFAULT_URL,
    timeout: TimeoutOption = "10s",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """List a server's models with their versions and states."""

    async def ask(service: Service, context: Context) -> Any:
        return await service(RepositoryIndexRequest(context=context))

    entries = _asked(url, timeout, ask)
    if output is OutputFormat.JSON:
        say_json(
            [
                {
                    "name": entry.name,
                    "version": entry.version,
                    "state": entry.state.value,
                    "reason": entry.reason,
                }
                for entry in entries
            ]
        )
        return
    rows = [(entry.name, entry.version, entry.state.value, entry.reason) for entry in entries]
    say(table(("model", "version", "state", "reason"), rows))


def health(
    url: UrlArgument = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Ask about this model.")] = None,
    version: VersionOption = "",
    timeout: TimeoutOption = "5s",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Say whether a server, or one of its models, is ready.

    Exit status: 0 ready, 1 not ready or not there.
    """
    what = "server" if model is None else f"model {model}"

    async def ask(service: Service, context: Context) -> bool:
        if model is None:
            return await service(ServerReadyRequest(context=context))
        ref = ModelRef(model, version)
        return await service(ModelReadyRequest(model=ref, context=context))

    ready = _asked(url, timeout, ask)
    if output is OutputFormat.JSON:
        say_json({"ready": ready})
    else:
        say("ready" if ready else "not ready")
    if not ready:
        note(f"gateway: {what} at {url} is not ready")
        raise typer.Exit(FAILED)


# What a protocol's answers leave out comes from the model's metadata.
_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def _asked(url: str, timeout: str, ask: Callable[[Service, Context], Awaitable[R]]) -> R:
    """Connect, ask, close; what goes wrong ends the command with one line."""
    try:
        where, wait_s = parse_url(url), parse_duration(timeout)
    except ValueError as error:
        fail(str(error), WRONG_USAGE)
    try:
        return asyncio.run(_exchange(where, wait_s, ask))
    except LookupError as error:
        fail(str(error.args[0]), WRONG_USAGE)
    except GatewayError as error:
        fail(f"{where}: {error.message} ({error.code.value})")


async def _exchange(url: Url, wait_s: float, ask: Callable[[Service, Context], Awaitable[R]]) -> R:
    connected = connect(url)
    try:
        context = Context(deadline=time.monotonic() + wait_s, needs=_NEEDS)
        return await ask(Complete(connected.service, connected.needs), context)
    finally:
        await connected.close()


def _values(texts: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in map(_pair_of("--input"), texts):
        if name in values:
            fail(f"--input {name!r} is given twice", WRONG_USAGE)
        try:
            values[name] = read_value(text)
        except ValueError as error:
            fail(f"--input {name}: {error}", WRONG_USAGE)
    return values


def _pair_of(flag: str) -> Callable[[str], tuple[str, str]]:
    def pair(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            fail(f"{flag} {text[:40]!r} is not NAME=VALUE", WRONG_USAGE)
        return name, value

    return pair


def _datatype(text: str) -> Datatype:
    try:
        return Datatype(text)
    except ValueError:
        names = ", ".join(datatype.name for datatype in Datatype)
        fail(f"--datatype: {text!r} is none of {names}", WRONG_USAGE)


def _tensors(
    values: dict[str, Any], known: dict[str, Datatype], metadata: ModelMetadata
) -> tuple[Tensor, ...]:
    declared = {tensor.name: tensor for tensor in metadata.inputs}
    tensors = []
    for name, value in values.items():
        entry = declared.get(name)
        datatype = known.get(name) or (None if entry is None else entry.datatype)
        if datatype is None:
            inputs = ", ".join(declared) or "none that it tells"
            raise InvalidTensor(
                f"model {metadata.name!r} has no input {name!r}, its inputs are: {inputs}"
            )
        tensors.append(tensor_of(name, value, datatype, None if entry is None else entry.shape))
    return tuple(tensors)


def _print_answer(answer: InferResponse, output: OutputFormat) -> None:
    try:
        tensors = [json_of(tensor) for tensor in answer.outputs]
    except GatewayError as error:
        fail(f"the answer cannot be shown: {error.message}")
    if output is OutputFormat.JSON:
        say_json({"model": answer.model.name, "version": answer.model.version, "outputs": tensors})
        return
    rows = [
        (entry["name"], entry["datatype"], str(entry["shape"]), _short(entry["data"]))
        for entry in tensors
    ]
    say(table(("output", "datatype", "shape", "data"), rows))


_WIDTH = 100


def _short(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=False)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}... (--output json shows all)"
