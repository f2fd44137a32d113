"""Each client protocol before each model of a server: what works, what is lost, what is refused.

A call of a client takes its whole way in this process: the client's side of a codec writes it, the
listener's side reads it, the layers of an upstream send it on, and the reply takes the same way
back. There is no listener. `certify_pairs` compares the reply with the direct one.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np

from gateway.api.protocol import (
    Codec,
    GrpcBinding,
    HttpBinding,
    Options,
    ProtocolSpec,
    StreamBinding,
)
from gateway.app import complete_service, connect
from gateway.cli.calling.server_flags import ServerFlags
from gateway.conformance.client_lines import client_line
from gateway.conformance.findings import NO_MODELS, Findings, PairFinding, PairVerdict, Subject
from gateway.conformance.losses import arrived, carried_parts, lost_of_inputs, lost_of_reply
from gateway.conformance.tensors import named_model
from gateway.ir.bodies.streams import first_replies
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    RepositoryIndexRequest,
    ServerMetadataRequest,
    StreamInferRequest,
)
from gateway.ir.context import CallSequence, Context, ModelRef, Need
from gateway.ir.errors import GatewayError, NotOneReply, TooLarge, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, ServerMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp32
from gateway.ir.tensors.tensor import Tensor, array_tensor, items_tensor
from gateway.ir.texts import visible
from gateway.policies.complete.policy import Complete
from gateway.policies.signatures import DescribedModels
from gateway.registry import carrier_of, protocol, protocol_names
from gateway.routing.match import Rule
from gateway.routing.model_keys import ModelKeyIndex, ResolveModelKeys
from gateway.routing.router import Route, Router
from gateway.service import Service
from gateway.settings.signature import SignatureConfig, TensorConfig
from gateway.settings.units import Url

R = TypeVar("R")

_TENSORS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
_MOST_MODELS: Final = 8
_MOST_ELEMENTS: Final = 1 << 22
_NO_OPTIONS: Final[Options] = MappingProxyType({})
_MOST_REPLIES: Final = 100
_DEFAULT: Final = "default_model"
_UNDESCRIBED: Final = "the metadata of model"
_UNTOLD: Final = "model metadata is not supported"
_SIGNATURE: Final = "models.NAME.signature"
_LISTENER: Final = "listeners[].{}"
_UPSTREAM: Final = "upstreams[].options.{}"
_REFUSES: Final = "the gateway refuses the call"
_NOT_REPEATABLE: Final = "values are not compared: two direct replies differ"
# How texts of errors name keys of models, and options of clients and upstreams.
_KEY: Final = re.compile(r"(?<=\()models: [^()]+(?=\)$)|models\.[\w.]+\w")
_OPTION: Final = re.compile(r"option '(\w+)'")


@dataclass(frozen=True, slots=True)
class ClientForm:
    """A protocol over a carrier, as a client speaks it.

    Attributes:
        spec: The protocol.
        carrier: Such as `http`, as URLs name it.
        binding: The protocol's binding to the carrier.
    """

    spec: ProtocolSpec
    carrier: str
    binding: HttpBinding | GrpcBinding | StreamBinding

    @property
    def name(self) -> str:
        """Such as `oip+http`."""
        return f"{self.spec.name}+{self.carrier}"

    def listener(self, default_model: str = "") -> Codec[Any, Any]:
        """Return the codec of a listener of `gateway serve --upstream`."""
        options = dict(self.spec.sidecar.options)
        if default_model and self.spec.default_model:
            options[self.spec.default_model] = default_model
        return self._codec(options)

    def client(self, options: Options = _NO_OPTIONS) -> Codec[Any, Any]:
        """Return the codec that writes requests, of a client before a server without a name."""
        resolve = self.spec.resolve_dialect
        return self._codec(options if resolve is None else resolve(self.spec.options(options), ""))

    def _codec(self, options: Options) -> Codec[Any, Any]:
        codec: Codec[Any, Any] = self.binding.codec(DEFAULT_LIMITS, self.spec.options(options))
        return codec


def client_forms() -> Iterator[ClientForm]:
    """Yield each protocol with each of its codecs, by the first of the carriers that share it."""
    for name in protocol_names():
        spec = protocol(name)
        seen = []
        for carrier, binding in spec.carriers.items():
            if binding not in seen:
                seen.append(binding)
                yield ClientForm(spec, carrier, binding)


async def certify_upstream(
    url: Url,
    flags: ServerFlags,
    models: Sequence[str],
    *,
    expect: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float,
    rate: float | None = None,
) -> Findings:
    """Return what comes of the calls of each client protocol to the models of a server.

    Args:
        url: The server.
        flags: How to connect to it.
        models: Names of models; empty for those of the server's index.
        expect: Paths of files with the tensors of models that the server does not describe.
        timeout_s: Longest time for one call.
        rate: Most requests in a second; None for no limit.

    Raises:
        LookupError: The protocol does not exist, or the server lists no models.
        ValueError: The URL or a file is wrong.
        GatewayError: The server does not reply.
    """
    signatures = {name: _signature(name, path) for name, path in expect.items()}
    connected = connect(url, tls=flags.tls)

    async def paced(call: Call[R]) -> R:
        await asyncio.sleep(0 if rate is None else 1 / rate)
        return await connected.service(call)

    try:
        paced_server = replace(connected, service=paced)
        service = complete_service(paced_server, url, flags.headers)
        described = DescribedModels(signatures) if signatures else None
        question = _timed(ServerMetadataRequest(), timeout_s)
        server = await _reply_if_any(service, question) or ServerMetadata("", "")
        names = list(models)
        if not names:
            index = await _reply_if_any(service, _timed(RepositoryIndexRequest(), timeout_s)) or ()
            names = sorted({entry.name for entry in index})[:_MOST_MODELS]
        if not names:
            raise LookupError(NO_MODELS)
        known = complete_service(paced_server, url, flags.headers, described)
        pairs = await certify_pairs(service, url, names, known, timeout_s=timeout_s)
    finally:
        await connected.close()
    subject = Subject(str(url), url.form, visible(server.name), visible(server.version))
    return Findings(subject, (), pairs)


def _signature(model: str, path: str) -> SignatureConfig:
    """Return the tensors of a file as a configuration has them.

    Raises:
        ValueError: The file is wrong.
    """
    found = named_model(model, path)
    if found.fault or not found.inputs:
        raise ValueError(found.fault or f"{path} has no inputs: expected a file of tensors")
    inputs, outputs = (
        tuple(TensorConfig(**each._asdict()) for each in tensors)
        for tensors in (found.inputs, found.outputs)
    )
    return SignatureConfig(inputs=inputs, outputs=outputs)


async def _reply_if_any(service: Service, call: Call[R]) -> R | None:
    """Return the reply to a question; None where the protocol or the server has none.

    Raises:
        GatewayError: The server does not reply.
    """
    try:
        return await service(call)
    except Unsupported:
        return None
    except GatewayError as error:
        if error.origin is None:
            raise
        return None


def _timed(call: Call[R], timeout_s: float) -> Call[R]:
    """Return *call* with its deadline."""
    return call.with_deadline(time.monotonic() + timeout_s)


async def certify_pairs(
    service: Service,
    url: Url,
    models: Iterable[str],
    described: Service | None = None,
    *,
    timeout_s: float = 10.0,
) -> list[PairFinding]:
    """Return what comes of the calls of each client protocol to each model.

    Args:
        service: Sends calls to the server, and completes them; see `app.complete_service`.
        url: The server.
        models: Names of its models.
        described: Does the same, and knows what a configuration would say of models.
        timeout_s: Longest time for one call.
    """
    forms = list(client_forms())
    own = ClientForm(protocol(url.protocol), url.carrier, carrier_of(url))
    found: list[PairFinding] = []
    for model in models:
        try:
            sample = await _sample(service, described or service, model, timeout_s)
        except GatewayError as error:
            why = f"there is no direct reply: {visible(error.message)}"
            key = _key_of(error)
            tried = forms
            if _UNTOLD in error.message or key == _SIGNATURE:
                # Calls in the server's own words pass, with or without a description.
                key, tried = _SIGNATURE, [each for each in forms if each.name != own.name]
            refused = (PairVerdict.REFUSED, (why,), key, "")
            found += [PairFinding(visible(model), form.name, *refused) for form in tried]
            continue
        direct = await _Pair(own, sample).direct()
        found += [await _Pair(form, sample).finding(url, direct) for form in forms]
    return found


@dataclass(frozen=True, slots=True)
class _Sample:
    """A model, a call of it, and the direct reply.

    Attributes:
        service: Sends calls to its server.
        described: Does the same, and knows what a configuration would say of the model.
        replies: One, or those of a stream.
        is_repeatable: Whether a second call has replies with the same outputs.
    """

    service: Service
    described: Service
    metadata: ModelMetadata
    call: InferRequest
    replies: list[InferResponse]
    is_repeatable: bool
    timeout_s: float

    def timed(self, call: Call[R]) -> Call[R]:
        """Return *call* with its deadline."""
        return _timed(call, self.timeout_s)


async def _sample(service: Service, described: Service, model: str, timeout_s: float) -> _Sample:
    """Ask the server itself.

    Raises:
        GatewayError: It has no metadata of the model, or refuses the call that they describe.
    """
    # With the batch size comes the configuration, and whether the model expects sequences.
    context = Context(needs=frozenset({Need.BATCHING}))
    question = ModelMetadataRequest(model=ModelRef(model), context=context)
    metadata = await described(_timed(question, timeout_s))
    size = sum(prod(_shape(each)) for each in metadata.inputs)
    if size > _MOST_ELEMENTS:
        raise TooLarge(f"its inputs have {size} elements: expected at most {_MOST_ELEMENTS}")
    call = InferRequest(
        model=ModelRef(model),
        inputs=tuple(_input(each, place) for place, each in enumerate(metadata.inputs)),
        sequence=CallSequence(7, start=True, end=True) if metadata.stateful else None,
    ).with_context(needs=_TENSORS)
    sent = _streamed(call) if metadata.decoupled else call
    one, other = [await _replies_to(described, _timed(sent, timeout_s)) for _ in range(2)]
    if not one:
        raise NotOneReply(f"model {model!r} sent no response", model=call.model)
    same = [each.outputs for each in one] == [each.outputs for each in other]
    return _Sample(service, described, metadata, call, one, same, timeout_s)


def _streamed(call: InferRequest) -> StreamInferRequest:
    """Return a call that may have several replies."""
    return StreamInferRequest(model=call.model, request=call, context=call.context)


async def _replies_to(service: Service, call: Call[Any]) -> list[InferResponse]:
    """Return the reply to an inference, or all of a stream.

    Raises:
        GatewayError: The call fails, or one of the replies is an error or one too many.
    """
    found = await service(call)
    if isinstance(found, InferResponse):
        return [found]
    replies = await first_replies(found, _MOST_REPLIES + 1)
    if len(replies) > _MOST_REPLIES:
        raise TooLarge(f"there are more than {_MOST_REPLIES} replies")
    return replies


def _input(tensor: TensorMetadata, place: int) -> Tensor:
    """Return small numbers that differ from input to input, exact in every datatype."""
    shape, datatype = _shape(tensor), tensor.datatype or Datatype.FP32
    numbers = (np.arange(prod(shape)) + place) % 7 + 1
    if datatype is Datatype.BYTES:
        return items_tensor(tensor.name, shape, [b"%d" % number for number in numbers])
    if datatype is Datatype.BOOL:
        numbers %= 2
    if datatype is Datatype.BF16:
        array = bf16_of_fp32(numbers.astype(np.float32))
    else:
        array = numbers.astype(datatype.numpy_dtype)
    return array_tensor(tensor.name, array.reshape(shape), datatype)


def _shape(tensor: TensorMetadata) -> tuple[int, ...]:
    """Return the smallest shape that the metadata allow."""
    return (1,) if tensor.shape is None else tuple(max(1, size) for size in tensor.shape)


@dataclass(frozen=True, slots=True)
class _Direct:
    """What clients of the server's own protocol have.

    Attributes:
        carried: Parts of calls.
        lost: What their replies lack of the completed one.
    """

    carried: list[str]
    lost: frozenset[str]


class _Pair:
    """The calls of one client protocol to one model.

    Args:
        form: The protocol of the client.
        sample: The model.
    """

    def __init__(self, form: ClientForm, sample: _Sample) -> None:
        self._form = form
        self._sample = sample
        self._options = _NO_OPTIONS

    async def direct(self) -> _Direct:
        """Return what clients have without a gateway, if the server has this protocol."""
        trial = await self._trial(self._sample.metadata.name)
        return _Direct(await self._carried(), frozenset(trial.lost()))

    async def finding(self, url: Url, direct: _Direct) -> PairFinding:
        """Return what came of the call, and which key would change it.

        Args:
            url: The server.
            direct: What its own clients have.
        """
        spec = self._form.spec
        # A gateway before a server whose protocol has no names makes one up for its own clients.
        default = spec.sidecar.default_model if spec.name == url.protocol else ""
        trial = await self._trial(default)
        option = None if trial.error is None else _OPTION.search(trial.error.message)
        if option is not None and trial.request is None:  # a client chooses how it writes
            self._options = {option[1]: True}
            trial = await self._trial(default)
        name, form = visible(self._sample.metadata.name), self._form.name
        request = ""
        if trial.request is not None:
            request = client_line(form, trial.request, self._sample.call, url)
        if trial.error is None or trial.is_answered:
            lost = await self._lost(trial, direct)
            verdict = PairVerdict.LOSES if lost else PairVerdict.WORKS
            notes = () if self._sample.is_repeatable else (_NOT_REPEATABLE,)
            return PairFinding(name, form, verdict, (*lost, *notes), "", request)
        key, why = "", [f"{trial.stage}: {visible(trial.error.message)}"]
        if trial.request is not None:
            key = _key_of(trial.error) or ("" if option is None else _UPSTREAM.format(option[1]))
            if not key:
                more, key = await self._with_keys(trial, direct, default)
                why += more
        return PairFinding(name, form, PairVerdict.REFUSED, why, key, request)

    async def _with_keys(
        self, trial: "_Trial", direct: _Direct, default: str
    ) -> tuple[list[str], str]:
        """Return what the keys that a refusal asks for would change, and these keys."""
        keys = list[str]()
        service = self._sample.service
        while trial.error is not None and not trial.is_answered:
            text = trial.error.message
            if _DEFAULT in text and not default:
                default = self._sample.metadata.name
                keys.append(_LISTENER.format(_DEFAULT))
            elif _UNDESCRIBED in text and service is not self._sample.described:
                service = self._sample.described
                keys.append(_SIGNATURE)
            else:
                break
            trial = await self._trial(default, service)
        named = ", ".join(keys)
        if trial.error is not None and not trial.is_answered:
            also = _key_of(trial.error)
            why = f"with {named}, {trial.stage}: {visible(trial.error.message)}"
            return [why] if keys else [], f"{named}, {also}" if also else ""
        lost = await self._lost(trial, direct)
        return [f"with this key, it loses: {', '.join(lost)}"] if lost else [], named

    async def _lost(self, trial: "_Trial", direct: _Direct) -> list[str]:
        """Return what clients of the protocol lack that the server's own ones have."""
        own = await self._carried()
        return [
            *(each for each in trial.lost() if each not in direct.lost),
            *(each for each in direct.carried if each not in own),
        ]

    async def _trial(self, default_model: str = "", service: Service | None = None) -> "_Trial":
        """Return what comes of the call.

        Args:
            default_model: That of the listener; "" for none.
            service: Sends calls to the server; that without a description by default.
        """
        sample, client = self._sample, self._form.client(self._options)
        listener = self._form.listener(default_model)
        service = _served(service or sample.service, self._form.spec, default_model)
        trial = _Trial(client, listener, sample, service)
        is_stream = len(sample.replies) > 1 and self._form.carrier == "grpc"
        call: Call[Any] = _streamed(sample.call) if is_stream else sample.call
        try:
            trial.replies = await _replies_to(Complete(trial, client.needs), call)
        except GatewayError as error:
            trial.error = error
            if error.origin is not None and trial.stage == _REFUSES:
                trial.stage = "the server refuses the call"
        return trial

    async def _carried(self) -> list[str]:
        """Return the parts of calls that clients write and a listener reads."""
        client = self._form.client(self._options)
        listener = self._form.listener(self._sample.metadata.name)
        found: list[str] = []

        async def end(call: Call[Any]) -> Any:
            if type(call) is not InferRequest:
                return await self._sample.described(self._sample.timed(call))
            found.extend(carried_parts(client, listener, call, self._sample.metadata))
            return self._sample.replies[0]

        with suppress(GatewayError):  # what the client cannot write carries nothing
            await Complete(end, client.needs)(self._sample.call)
        return found


def _served(service: Service, spec: ProtocolSpec, default_model: str) -> Service:
    """Return what a listener without routes of its own calls for the clients of a protocol."""
    router = Router((Route("models", Rule(), service),), service, default_model=default_model)
    if not spec.has_model_keys:
        return router
    return ResolveModelKeys(router, ModelKeyIndex(service, router.matches_model))


class _Trial:
    """The end of a client's layers: sends one inference through the gateway, and notes its forms.

    Args:
        client: Writes the call, and reads the reply.
        listener: Reads the call, and writes the reply.
        sample: The model.
        service: What the listener calls.

    Attributes:
        request: What the client writes; None before.
        replies: What the client reads, completed by the metadata of the model.
        error: Why there is no reply.
        stage: Where the error is from.
    """

    def __init__(
        self,
        client: Codec[Any, Any],
        listener: Codec[Any, Any],
        sample: _Sample,
        service: Service,
    ) -> None:
        self._client = client
        self._listener = listener
        self._sample = sample
        self._service = service
        self._inputs: tuple[Tensor, ...] = ()
        self._raws: list[InferResponse] = []
        self.request: Any = None
        self.replies: list[InferResponse] = []
        self.error: GatewayError | None = None
        self.stage = "a client cannot write the call"

    async def __call__(self, call: Call[R], /) -> R:
        """Reply to an inference as the gateway, and to any other call as the server itself."""
        if not isinstance(call, InferRequest | StreamInferRequest):
            return await self._sample.described(self._sample.timed(call))
        self.request = self._client.encode_call(call)
        self.stage = _REFUSES
        received: Any = self._listener.decode_call(arrived(self.request))
        is_stream = isinstance(received, StreamInferRequest)
        self._inputs = (received.request if is_stream else received).inputs
        reply: Any = await self._service(self._sample.timed(received))
        if isinstance(call, StreamInferRequest):
            return self._items(call, received, reply)  # type: ignore[return-value]  # R is a stream
        self.stage = "the gateway cannot write the reply"
        response = self._listener.encode_reply(received, reply)
        self.stage = "a client cannot read the reply"
        self._raws.append(self._client.decode_reply(call, arrived(response)))
        return self._raws[0]  # type: ignore[return-value]  # R is InferResponse

    async def _items(
        self, call: StreamInferRequest, received: Any, items: Any
    ) -> AsyncIterator[InferResponse]:
        async for each in items:
            self.stage = "the gateway cannot write the reply"
            response = self._listener.encode_item(received, each)
            self.stage = "a client cannot read the reply"
            item = self._client.decode_item(call, arrived(response))
            if not item.is_end_mark:
                self._raws.append(item)
            yield item

    @property
    def is_answered(self) -> bool:
        """Whether a client reads a reply."""
        return bool(self._raws)

    def lost(self) -> list[str]:
        """Return what the messages lack of the direct call and of its replies, if there are any."""
        found = dict.fromkeys(lost_of_inputs(self._inputs))
        if self.error is None:
            expected, sample = self._sample.replies, self._sample
            if len(expected) != len(self.replies):
                found[f"replies: {len(self.replies)} for {len(expected)}"] = None
            for direct, raw, reply in zip(expected, self._raws, self.replies, strict=False):
                lost = lost_of_reply(direct, raw, reply, has_values=sample.is_repeatable)
                found |= dict.fromkeys(lost)
        elif self._raws:
            found[f"form of the reply: {self.error.message}"] = None
        return [visible(each) for each in found]


def _key_of(error: GatewayError) -> str:
    """Return the key of models that the end of an error's text names; "" for none."""
    found = _KEY.search(error.message)
    return "" if found is None else found[0]
