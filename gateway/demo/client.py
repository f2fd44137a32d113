"""One scan through every protocol there is, over real sockets: the answers, bytes and times.

The list of ways comes from the registry: a protocol takes part by being registered.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from gateway.app import connect
from gateway.config.units import UNIX, Url, parse_address
from gateway.demo.config import STREAMS
from gateway.demo.relay import Relay
from gateway.demo.samples import SIDE, Scan, Sentence
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import UpstreamProtocolError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.policies.complete.policy import Complete
from gateway.registry import PROTOCOLS, protocol
from gateway.service import Service
from gateway.wire.codec import Options, StreamBinding

# Where one codec has several forms, the options that choose each; otherwise it has one, unnamed.
_FORMS: Mapping[str, Mapping[str, Options]] = {
    "oip.http": {"JSON": {"dialect": "mlserver"}, "binary tensors": {"dialect": "triton"}},
    "oip.grpc": {"": {"dialect": "triton"}},
}
_ONE_FORM: Mapping[str, Options] = {"": {}}

_WARM_UP = 5
_COUNTED = 3
_TIMED = 31
_WAIT_S = 10.0
# What a protocol's answers leave out comes from the model's metadata.
_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


@dataclass(frozen=True, slots=True)
class Way:
    """One protocol on one carrier, in one form, at one address.

    Attributes:
        codec: Its name, such as "oip.http".
        one_model: It reaches the model `digits` alone.
    """

    codec: str
    url: Url
    form: str
    options: Options
    one_model: bool = False

    @property
    def name(self) -> str:
        """The codec's name and the form, as in "oip.http JSON"."""
        return f"{self.codec} {self.form}".rstrip()


@dataclass(frozen=True, slots=True)
class DemoReply:
    """What the model said of a scan: its digit, and a probability for each digit."""

    digit: int
    probabilities: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.digit} ({self.probabilities[self.digit]:.1%})"


@dataclass(frozen=True, slots=True)
class Trip:
    """A scan's way through one protocol.

    Attributes:
        request_bytes: On the wire for one call on an open connection, headers included.
        answer_bytes: The same for what came back.
        us: Median time of a call, microseconds.
    """

    way: Way
    answer: DemoReply
    request_bytes: int
    answer_bytes: int
    us: float


def ways(addresses: Mapping[str, str], listener: str = "main") -> Iterator[Way]:
    """Yield every way to ask the gateway that listens at *addresses* ("main.http": ...)."""
    for name in PROTOCOLS:
        for carrier, binding in protocol(name).carriers.items():
            streamed = isinstance(binding, StreamBinding)
            key = f"{STREAMS}.{name}.{carrier}" if streamed else f"{listener}.{carrier}"
            if key not in addresses or carrier == UNIX:
                continue
            address = parse_address(addresses[key])
            url = Url(name, carrier, address.host or "127.0.0.1", address.port)
            codec = binding.codec(DEFAULT_LIMITS, {}).name
            for form, options in _FORMS.get(codec, _ONE_FORM).items():
                yield Way(codec, url, form, options, one_model=streamed)


async def travel(way: Way, scan: Scan) -> Trip:
    """Send *scan* one way: a few calls through a counting relay, then some straight, timed.

    Raises:
        GatewayError: A call failed.
    """
    async with Relay(way.url.host, way.url.port) as relay:
        through = Url(way.url.protocol, way.url.carrier, "127.0.0.1", relay.port)
        async with _open(through, way.options) as service:
            answer = await ask_digit(service, scan)
            sizes = []
            for _ in range(_COUNTED):
                before = relay.sent, relay.received
                await ask_digit(service, scan)
                sizes.append((relay.sent - before[0], relay.received - before[1]))
    async with _open(way.url, way.options) as service:
        us = await _median_us(service, scan)
    request_bytes, answer_bytes = (
        int(statistics.median(each)) for each in zip(*sizes, strict=True)
    )
    return Trip(way, answer, request_bytes, answer_bytes, us)


async def ask_language(way: Way, sentence: Sentence) -> str:
    """Ask in which language *sentence* is.

    Raises:
        GatewayError: The call failed.
    """
    text = items_tensor("text", (1,), [sentence.text.encode()])
    async with _open(way.url, way.options) as service:
        answer = await service(_request("language", text))
    return bytes(as_items(_output(answer, "label"))[0]).decode()


async def ask_digit(service: Service, scan: Scan) -> DemoReply:
    """Ask which digit *scan* shows.

    Raises:
        GatewayError: The call failed.
    """
    pixels = np.array([scan.pixels], dtype=np.float32).reshape(1, SIDE * SIDE)
    answer = await service(_request("digits", array_tensor("X", pixels)))
    label = as_numpy(_output(answer, "label")).reshape(-1)
    probabilities = as_numpy(_output(answer, "probabilities")).reshape(-1)
    return DemoReply(int(label[0]), tuple(map(float, probabilities)))


def _request(model: str, tensor: Tensor) -> InferRequest:
    context = Context(deadline=time.monotonic() + _WAIT_S, needs=_NEEDS)
    return InferRequest(model=ModelRef(model), context=context, inputs=(tensor,))


def _output(answer: InferResponse, name: str) -> Tensor:
    for tensor in answer.outputs:
        if tensor.name == name:
            return tensor
    found = ", ".join(tensor.name for tensor in answer.outputs) or "none"
    raise UpstreamProtocolError(f"the answer has no output {name!r}, its outputs are: {found}")


@asynccontextmanager
async def _open(url: Url, options: Options) -> AsyncIterator[Service]:
    connected = connect(url, options=options)
    try:
        yield Complete(connected.service, connected.needs)
    finally:
        await connected.close()


async def _median_us(service: Service, scan: Scan) -> float:
    times = []
    for number in range(_WARM_UP + _TIMED):
        start = time.perf_counter()
        await ask_digit(service, scan)
        if number >= _WARM_UP:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6
