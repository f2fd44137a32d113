"""The demo client: its routes through every protocol, and how it reads replies."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.cli.demo.client import DemoReply, classify_digit, client_routes
from gateway.cli.demo.samples import load_scans
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import UpstreamProtocolError
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.registry import PROTOCOLS, protocol
from tests.fakes import ScriptedService

ADDRESSES = {"main.http": "127.0.0.1:1", "main.grpc": "127.0.0.1:2", "admin": "127.0.0.1:3"}


def test_every_registered_codec_has_a_route() -> None:
    """The routes come from the registry: each protocol on each of its carriers."""
    streams = {
        f"streams.{name}.{carrier}": "127.0.0.1:4"
        for name in PROTOCOLS
        for carrier in protocol(name).carriers
    }
    expected = {
        binding.codec(DEFAULT_LIMITS, {}).name
        for name in PROTOCOLS
        for binding in protocol(name).carriers.values()
    }
    assert expected == {way.codec for way in client_routes({**ADDRESSES, **streams})}


def test_messages_without_a_model_name_reach_one_model() -> None:
    """The listener's default model is called."""
    found = client_routes({"streams.graphpipe.tcp": "127.0.0.1:4", "main.grpc": "127.0.0.1:2"})
    assert {"graphpipe.stream", "seldon.grpc"} == {way.name for way in found if way.has_one_model}


def test_forms_of_one_codec_are_separate_routes() -> None:
    """JSON and binary tensors are two routes of Open Inference over HTTP."""
    names = [way.name for way in client_routes({"main.http": "127.0.0.1:1"})]
    assert {"oip.http JSON", "oip.http binary tensors"} <= set(names)


def test_a_disabled_listener_has_no_route() -> None:
    """Only open listeners are called, at their addresses."""
    found = {(way.url.carrier, way.url.port) for way in client_routes({"main.grpc": "127.0.0.1:2"})}
    assert {("grpc", 2)} == found


async def test_classify_digit_sends_pixels_and_decodes_the_reply() -> None:
    """The model gets 64 FP32 pixels by name; its label and probabilities are returned."""
    scan = load_scans()[3]
    outputs = (
        array_tensor("probabilities", np.array([[0.25, 0.75]], np.float32)),
        array_tensor("label", np.array([1], np.int64)),
    )
    service = ScriptedService(InferResponse(model=ModelRef("digits"), outputs=outputs))
    assert DemoReply(1, (0.25, 0.75)) == await classify_digit(service, scan)
    (call,) = service.calls
    assert isinstance(call, InferRequest)
    assert call.model == ModelRef("digits")
    assert call.context.deadline is not None
    (pixels,) = call.inputs
    assert (pixels.name, pixels.shape) == ("X", (1, 64))
    assert as_numpy(pixels).ravel().tolist() == list(scan.pixels)


async def test_the_only_output_is_probabilities_whose_largest_is_the_digit() -> None:
    """A SeldonMessage has one output."""
    outputs = (array_tensor("probabilities", np.array([[0.75, 0.25]], np.float32)),)
    service = ScriptedService(InferResponse(model=ModelRef("digits"), outputs=outputs))
    assert DemoReply(0, (0.75, 0.25)) == await classify_digit(service, load_scans()[3])


async def test_a_reply_without_probabilities_is_rejected() -> None:
    """The error names the missing output, and the existing ones."""
    outputs = (array_tensor("other", np.array([1], np.int64)),)
    service = ScriptedService(InferResponse(model=ModelRef("digits"), outputs=outputs))
    with pytest.raises(UpstreamProtocolError, match="'probabilities'; its outputs are other"):
        await classify_digit(service, load_scans()[0])
