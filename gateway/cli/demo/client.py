"""Sends one scan through every registered protocol, and measures results, bytes and times."""

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from gateway.api.protocol import Options, StreamBinding
from gateway.app import connect
from gateway.cli.calling.guessed_outputs import with_datatypes
from gateway.cli.demo.config import STREAMS, TEXT_MODEL
from gateway.cli.demo.digit_texts import text_of
from gateway.cli.demo.relay import Relay
from gateway.cli.demo.samples import SIDE, Scan, Sentence
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import UpstreamProtocolError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.policies.complete.policy import Complete
from gateway.registry import PROTOCOLS, protocol
from gateway.service import Service
from gateway.settings.units import UNIX, Url, parse_address

# The options of each form of a codec; other codecs have one form without a name.
_FORMS: Mapping[str, Mapping[str, Options]] = {
    "oip.http": {"JSON": {"dialect": "mlserver"}, "binary tensors": {"dialect": "triton"}},
    "oip.grpc": {"": {"dialect": "triton"}},
}
TEXT_CODECS = frozenset({"openai.http"})
"""The codecs whose clients send texts."""

NAMELESS_CODECS = frozenset({"mlflow.http", "seldon.http", "seldon.grpc"})
"""The codecs whose requests name no model."""

_ONE_FORM: Mapping[str, Options] = {"": {}}

_WARM_UP = 5
_COUNTED = 3
_TIMED = 31
_WAIT_S = 10.0
# The model's metadata completes protocols that do not send names, datatypes or shapes.
_NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


@dataclass(frozen=True, slots=True)
class ClientRoute:
    """One protocol on one carrier, in one form, at one address.

    Attributes:
        codec: The name of the codec, such as "oip.http".
        has_one_model: Whether it reaches only the model `digits`.
    """

    codec: str
    url: Url
    form: str
    options: Options
    has_one_model: bool = False

    @property
    def name(self) -> str:
        """The codec's name and the form, as in "oip.http JSON"."""
        return f"{self.codec} {self.form}".rstrip()


@dataclass(frozen=True, slots=True)
class DemoReply:
    """The model's result for a scan: its digit, and a probability for each digit."""

    digit: int
    probabilities: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.digit} ({self.probabilities[self.digit]:.1%})"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result and the cost of a call through one protocol.

    Attributes:
        request_bytes: Bytes on the wire of one call on an open connection, headers included.
        response_bytes: Bytes of the response's body on the wire.
        us: Median time of a call, microseconds.
    """

    route: ClientRoute
    reply: DemoReply
    request_bytes: int
    response_bytes: int
    us: float


def client_routes(addresses: Mapping[str, str], listener: str = "main") -> Iterator[ClientRoute]:
    """Yield every route of a client to the gateway at *addresses* ("main.http": ...)."""
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
                one_model = streamed or codec in TEXT_CODECS or codec in NAMELESS_CODECS
                yield ClientRoute(codec, url, form, options, has_one_model=one_model)


async def measure(route: ClientRoute, scan: Scan) -> Measurement:
    """Send *scan* a few times through a counting relay, then directly to measure the time.

    Raises:
        GatewayError: A call failed.
    """
    async with Relay(route.url.host, route.url.port) as relay:
        through = Url(route.url.protocol, route.url.carrier, "127.0.0.1", relay.port)
        classify = classify_text if route.codec in TEXT_CODECS else classify_digit
        async with opened(through, route.options) as service:
            reply = await classify(service, scan)
            sizes = []
            for _ in range(_COUNTED):
                before = relay.sent, relay.received
                await classify(service, scan)
                sizes.append((relay.sent - before[0], relay.received - before[1]))
    async with opened(route.url, route.options) as service:
        us = await _median_us(classify, service, scan)
    request_bytes, response_bytes = (
        int(statistics.median(each)) for each in zip(*sizes, strict=True)
    )
    return Measurement(route, reply, request_bytes, response_bytes, us)


async def classify_language(route: ClientRoute, sentence: Sentence) -> str:
    """Return the language of *sentence*.

    Raises:
        GatewayError: The call failed.
    """
    text = items_tensor("text", (1,), [sentence.text.encode()])
    async with opened(route.url, route.options) as service:
        reply = await service(_request("language", text))
    return bytes(as_items(_output(reply, "label"))[0]).decode()


async def classify_digit(service: Service, scan: Scan, request_id: str = "") -> DemoReply:
    """Return the digit of *scan*.

    Args:
        service: A client.
        scan: The input.
        request_id: Names the call; "" lets the gateway choose.

    Raises:
        GatewayError: The call failed.
    """
    pixels = np.array([scan.pixels], dtype=np.float32).reshape(1, SIDE * SIDE)
    reply = await service(_request("digits", array_tensor("X", pixels), request_id))
    # Their text is that of FP32, whatever it is read as.
    probabilities = as_numpy(_output(reply, "probabilities")).reshape(-1).astype(np.float32)
    digit = int(probabilities.argmax())
    if len(reply.outputs) > 1:  # a SeldonMessage has one
        digit = int(as_numpy(_output(reply, "label")).reshape(-1)[0])
    return DemoReply(digit, tuple(map(float, probabilities)))


async def classify_text(service: Service, scan: Scan) -> DemoReply:
    """Return the digit of *scan*, whose pixels are sent as a text.

    Raises:
        GatewayError: The call failed.
    """
    text = items_tensor("text", (1,), [text_of(scan)])
    reply = await service(_request(TEXT_MODEL, text))
    probabilities = as_numpy(_output(reply, "embedding")).reshape(-1)
    return DemoReply(int(probabilities.argmax()), tuple(map(float, probabilities)))


def _request(model: str, tensor: Tensor, request_id: str = "") -> InferRequest:
    deadline = time.monotonic() + _WAIT_S
    context = Context(deadline=deadline, needs=_NEEDS, request_id=request_id)
    return InferRequest(model=ModelRef(model), context=context, inputs=(tensor,))


def _output(reply: InferResponse, name: str) -> Tensor:
    for tensor in reply.outputs:
        if tensor.name == name:
            return tensor
    names = ", ".join(tensor.name for tensor in reply.outputs) or "none"
    raise UpstreamProtocolError(f"the reply has no output {name!r}; its outputs are {names}")


@asynccontextmanager
async def opened(url: Url, options: Options) -> AsyncIterator[Service]:
    """Yield a client of a protocol, which is given what its messages do not have."""
    connected = connect(url, options=options)
    try:
        yield Complete(with_datatypes(connected.service, connected.needs), connected.needs)
    finally:
        await connected.close()


async def _median_us(
    classify: Callable[[Service, Scan], Awaitable[DemoReply]], service: Service, scan: Scan
) -> float:
    times = []
    for number in range(_WARM_UP + _TIMED):
        start = time.perf_counter()
        await classify(service, scan)
        if number >= _WARM_UP:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6
