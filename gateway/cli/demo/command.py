"""The command `demo`: recognises a handwritten digit over real sockets, in every protocol."""

import signal
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from gateway.app import Gateway
from gateway.cli.commands import all_commands
from gateway.cli.demo.client import Measurement, classify_language, client_routes, measure
from gateway.cli.demo.config import demo_config
from gateway.cli.demo.samples import Scan, Sentence, draw, load_scans, load_sentences
from gateway.cli.output import (
    FAILED,
    OutputFormat,
    OutputOption,
    format_table,
    print_json,
    print_note,
    print_text,
)
from gateway.cli.serving.run import run_mapping
from gateway.cli.serving.serve import AdminOption, GrpcOption, HttpOption
from gateway.ir.errors import GatewayError
from gateway.registry import load_dotted


def demo(  # noqa: PLR0913  # one for each flag
    *,
    once: Annotated[bool, typer.Option("--once", help="Stop after the table.")] = False,
    digit: Annotated[int, typer.Option(min=0, max=9, help="The digit to recognise.")] = 2,
    http: HttpOption = None,
    grpc: GrpcOption = None,
    admin: AdminOption = None,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Show a migration to another server instead.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --migrate: leave the page open afterwards.")
    ] = False,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Recognise a handwritten digit over every protocol, compare the results, and keep serving.

    `--migrate` mirrors calls to a new server, compares the replies, moves the calls step by step,
    and takes them back when the new server fails. It takes about half a minute.

    Exit status: 0 all results agree, 1 they differ or the gateway cannot start, 2 usage error.

    Example: gateway demo --once
    """
    if migrate:
        load_dotted(all_commands()["migration-demo"])(keep=keep, admin=admin)
    demo_run = DemoRun(load_scans()[digit], load_sentences()[3], output, once=once)
    quiet = {"telemetry": {"log": {"level": "warning"}}}
    status = run_mapping(
        lambda: {**demo_config(http=http, grpc=grpc, admin=admin, streams=True), **quiet},
        started=demo_run,
    )
    raise typer.Exit(status if demo_run.agrees else FAILED)


class DemoRun:
    """Runs the demo when the gateway listens.

    Attributes:
        agrees: Whether every protocol returned the same result.
    """

    def __init__(self, scan: Scan, sentence: Sentence, output: OutputFormat, *, once: bool) -> None:
        self._scan = scan
        self._sentence = sentence
        self._output = output
        self._once = once
        self.agrees = False

    async def __call__(self, gateway: Gateway) -> None:
        """Run the demo and print it; then stop the gateway, or let it serve."""
        try:
            await self._run(gateway.addresses)
        except GatewayError as error:
            print_note(f"gateway: a call of the demo failed: {error.message} ({error.code.value})")
        if self._once or not self.agrees:
            signal.raise_signal(signal.SIGTERM)
        else:
            print_note(serving_text(gateway.addresses, self._scan))

    async def _run(self, addresses: Mapping[str, str]) -> None:
        if self._output is OutputFormat.TEXT:
            digit = self._scan.digit
            print_text(f"A scan of a handwritten {digit}, which no model was trained on:\n")
            print_text(draw(self._scan) + "\n")
        results = [await measure(route, self._scan) for route in client_routes(addresses)]
        route = next(result.route for result in results if not result.route.has_one_model)
        language = await classify_language(route, self._sentence)
        self.agrees = len({result.reply for result in results}) == 1
        if self._output is OutputFormat.JSON:
            print_json(as_json(results, agreed=self.agrees))
            return
        print_text(as_table(results) + "\n")
        if not self.agrees:
            print_note("gateway: the results differ")
            return
        print_text(f"All {len(results)} results agree, to the last bit of ten probabilities.")
        print_text(f'The language of "{self._sentence.text}" is {language}.')


def as_table(results: Sequence[Measurement]) -> str:
    """Return the results as a table of plain text."""
    head = ("protocol", "request bytes", "response bytes", "result", "microseconds")
    rows = [
        (
            result.route.name,
            str(result.request_bytes),
            str(result.response_bytes),
            str(result.reply),
            f"{result.us:.0f}",
        )
        for result in results
    ]
    return format_table(head, rows, right=(1, 2, 4))


def as_json(results: Sequence[Measurement], *, agreed: bool) -> dict[str, object]:
    """Return the results as values for JSON."""
    entries = [
        {
            "protocol": result.route.codec,
            "form": result.route.form,
            "request_bytes": result.request_bytes,
            "answer_bytes": result.response_bytes,
            "digit": result.reply.digit,
            "probabilities": list(result.reply.probabilities),
            "microseconds": round(result.us),
        }
        for result in results
    ]
    return {"agreed": agreed, "trips": entries}


def serving_text(addresses: Mapping[str, str], scan: Scan) -> str:
    """Return the addresses of the gateway, and a command to try."""
    text = "\nServing: " + ", ".join(f"{name} on {at}" for name, at in addresses.items())
    http = addresses.get("main.http")
    if http is not None:
        pixels = ",".join(f"{pixel:g}" for pixel in scan.pixels)
        body = (
            f'{{"inputs":[{{"name":"X","datatype":"FP32","shape":[1,{len(scan.pixels)}],'
            f'"data":[{pixels}]}}]}}'
        )
        text += f"\nTry:  curl -s http://{http}/v2/models/digits/infer -d '{body}'"
    return f"{text}\nCtrl-C stops."
