"""The command `advise`: what each client of a model should change."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.admin import asks_admin
from gateway.cli.calling.client import run_client
from gateway.cli.calling.signatures import load_signatures
from gateway.cli.output import (
    WRONG_USAGE,
    OutputFormat,
    OutputOption,
    fail,
    parse_or_fail,
    print_json,
    print_note,
    print_text,
)
from gateway.ir.calls import ModelMetadataRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.metadata import ModelMetadata
from gateway.migration.callers import advice
from gateway.migration.callers.advice import Advice, snippets
from gateway.migration.commands.stock import stock_rows
from gateway.policies.signatures import metadata_of
from gateway.service import Service
from gateway.settings.units import Url, parse_url

_NEW = ("oip+http://127.0.0.1:8000", "oip+grpc://127.0.0.1:8001")


@asks_admin("[ADDR|DIR]", "Admin address, or the state directory.")
def advise(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")],
    admin: str,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="The new server: oip+http://HOST:PORT, oip+grpc://HOST:PORT; repeatable. "
            f"Default {' and '.join(_NEW)}.",
        ),
    ] = None,
    new_model: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME[:VERSION]", help="Name of the model at the new server."),
    ] = None,
    signature: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Inputs and outputs of the model, instead of a question to the new server: a file "
            "with `inputs`, `outputs` and `max_batch_size`, or a configuration with signatures.",
        ),
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="For the new server.")] = "5s",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Say what each client of a model should change, and print the same call as code.

    The clients come from the stock of a gateway, or from its state directory. With --signature no
    server needs to run. Exit status: 0 success, 1 no client or no reply, 2
    usage error.

    Example: gateway advise fraud --to oip+http://127.0.0.1:9000
    """
    urls = [_new_server(text) for text in to or _NEW]
    rows = [row for row in stock_rows(admin) if str(row["model"]).partition(":")[0] == model]
    if not rows:
        fail(f"the stock has no client of model {model!r}")
    name, _, version = (new_model or model).partition(":")
    new_ref = ModelRef(name, version)
    if signature is not None:
        metadata = _from_file(signature, name, model)
    else:
        metadata = run_client(
            str(urls[0]), timeout, lambda *arguments: _metadata(new_ref, *arguments)
        )
    code = snippets(metadata, urls, version)
    found = advice.advise(rows, metadata, (name, version))
    if output is OutputFormat.JSON:
        print_json(_document(found, urls, code))
        return
    for each in found:
        _print_advice(each, urls)
    for library, text in code.items():
        print_text(f"# The same call with {library}:\n{text}")
    if not any(url.carrier == "grpc" for url in urls):
        print_note("gateway: --to oip+grpc://HOST:PORT adds the call over gRPC")


def _new_server(text: str) -> Url:
    url = parse_or_fail(parse_url, text)
    if url.protocol != "oip":
        fail(f"--to is {text!r}; expected oip+http://HOST:PORT or oip+grpc://HOST:PORT", 2)
    return url


def _from_file(path: Path, name: str, model: str) -> ModelMetadata:
    """Return the metadata of a model that has *name* at the new server, and *model* here."""
    signatures = load_signatures(path)
    found = next((signatures[key] for key in (name, model, "") if key in signatures), None)
    if found is None or not found.is_complete:
        fail(f"{path} has no inputs and outputs of model {name!r}", WRONG_USAGE)
    return metadata_of(name, found)


async def _metadata(model: ModelRef, service: Service, context: Context) -> ModelMetadata:
    return await service(ModelMetadataRequest(model=model, context=context))


def _print_advice(found: Advice, urls: Sequence[Url]) -> None:
    row = found.caller
    client = " ".join(filter(None, (row["client"] or "unknown client", row["agent"])))
    print_text(
        f"{client}: {row['protocol']}, {row['model']}, {row['calls']} calls, last seen "
        f"{row['last_seen']}"
    )
    print_text(f"  address  {', '.join(map(str, urls))}")
    if found.library:
        print_text(f"  library  {found.library}")
    for change in found.changes:
        print_text(f"  change   {change}")
    print_text("")


def _document(
    found: Sequence[Advice], urls: Sequence[Url], code: Mapping[str, str]
) -> dict[str, Any]:
    callers = [
        {**each.caller, "library": each.library, "changes": list(each.changes)} for each in found
    ]
    return {"urls": [str(url) for url in urls], "callers": callers, "code": dict(code)}
