"""`gateway demo`: a real digit recognised over real sockets, in every protocol there is."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from gateway.app import Gateway
from gateway.cli.output import FAILED, OutputFormat, OutputOption, note, say, say_json, table
from gateway.cli.run import run_mapping
from gateway.cli.serve import AdminOption, GrpcOption, HttpOption
from gateway.demo.client import Trip, ask_language, travel, ways
from gateway.demo.config import demo_config
from gateway.demo.samples import Scan, Sentence, draw, load_scans, load_sentences
from gateway.ir.errors import GatewayError


def demo(
    *,
    once: Annotated[bool, typer.Option("--once", help="Stop after the table.")] = False,
    digit: Annotated[int, typer.Option(min=0, max=9, help="Which digit to show.")] = 2,
    http: HttpOption = None,
    grpc: GrpcOption = None,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Recognise a handwritten digit over every protocol, compare the answers, and go on serving.

    Exit status: 0 all answers agree, 1 they do not or the gateway cannot start, 2 wrong usage.
    """
    show = Show(load_scans()[digit], load_sentences()[3], output, once=once)
    quiet = {"telemetry": {"log": {"level": "warning"}}}
    status = run_mapping(
        lambda: {**demo_config(http=http, grpc=grpc, admin=admin, streams=True), **quiet},
        started=show,
    )
    raise typer.Exit(status if show.agreed else FAILED)


class Show:
    """What happens once the gateway listens.

    Attributes:
        agreed: Whether every protocol brought the same answer; False before.
    """

    def __init__(self, scan: Scan, sentence: Sentence, output: OutputFormat, *, once: bool) -> None:
        self._scan = scan
        self._sentence = sentence
        self._output = output
        self._once = once
        self.agreed = False

    async def __call__(self, gateway: Gateway) -> None:
        """Show it on standard output; then let the gateway serve, or stop it."""
        try:
            await self._show(gateway.addresses)
        except GatewayError as error:
            note(f"gateway: a call of the demo failed: {error.message} ({error.code.value})")
        if self._once or not self.agreed:
            signal.raise_signal(signal.SIGTERM)
        else:
            note(farewell(gateway.addresses, self._scan))

    async def _show(self, addresses: Mapping[str, str]) -> None:
        if self._output is OutputFormat.TEXT:
            say(f"A scan of a handwritten {self._scan.digit}, which no model was trained on:\n")
            say(draw(self._scan) + "\n")
        trips = [await travel(way, self._scan) for way in ways(addresses)]
        way = next(trip.way for trip in trips if not trip.way.one_model)
        language = await ask_language(way, self._sentence)
        self.agreed = len({trip.answer for trip in trips}) == 1
        if self._output is OutputFormat.JSON:
            say_json(as_json(trips, agreed=self.agreed))
            return
        say(as_table(trips) + "\n")
        if not self.agreed:
            note("gateway: the answers differ")
            return
        say(f"All {len(trips)} answers agree, to the last bit of ten probabilities.")
        say(f'The language of "{self._sentence.text}" is {language}.')


def as_table(trips: Sequence[Trip]) -> str:
    """Return the trips as a table of plain text."""
    head = ("protocol", "request bytes", "answer bytes", "answer", "microseconds")
    rows = [
        (
            trip.way.name,
            str(trip.request_bytes),
            str(trip.answer_bytes),
            str(trip.answer),
            f"{trip.us:.0f}",
        )
        for trip in trips
    ]
    return table(head, rows, right=(1, 2, 4))


def as_json(trips: Sequence[Trip], *, agreed: bool) -> dict[str, object]:
    """Return the trips as values for JSON."""
    entries = [
        {
            "protocol": trip.way.codec,
            "form": trip.way.form,
            "request_bytes": trip.request_bytes,
            "answer_bytes": trip.answer_bytes,
            "digit": trip.answer.digit,
            "probabilities": list(trip.answer.probabilities),
            "microseconds": round(trip.us),
        }
        for trip in trips
    ]
    return {"agreed": agreed, "trips": entries}


def farewell(addresses: Mapping[str, str], scan: Scan) -> str:
    """Say where the gateway listens, and a command to try."""
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
