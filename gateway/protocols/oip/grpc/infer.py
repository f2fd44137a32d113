"""Inferences over gRPC: the fields of a call in a message, and the checks of a dialect.

`scan.py`, `decode.py` and `encode.py` have the bytes of messages, `streaming.py` the messages of
streams.

Source: Open Inference Protocol, gRPC API; docs/protocols/open-inference.md,
"8. Inference requests and responses".
"""

from collections.abc import Sequence
from typing import Any

from gateway.accelerator import accelerated
from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import ModelRef, Origin, Parameters
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import MalformedMessage
from gateway.ir.limits import MessageLimits
from gateway.ir.tensor import RequestedOutput, Tensor
from gateway.protocols.oip.grpc.context import NAME, NEEDS
from gateway.protocols.oip.grpc.decode import NOWHERE, InferReader
from gateway.protocols.oip.grpc.dialects import GrpcDialect, check_infer, check_version
from gateway.protocols.oip.grpc.encode import (
    RAW_INPUTS,
    RAW_OUTPUTS,
    FastInferEncoder,
    InferEncoder,
)
from gateway.protocols.oip.grpc.management import named_model
from gateway.protocols.oip.grpc.scan import InferMessage
from gateway.protocols.oip.grpc.streaming import FINAL, STREAM, StreamForm, split_final_mark
from gateway.protocols.oip.outputs import requested_output, with_c_values
from gateway.protocols.oip.parameters import (
    NO_REQUEST_PARAMETERS,
    join_parameters,
    split_parameters,
)
from gateway.protocols.oip.shared_memory import outputs_in_shared_memory
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Buffer
from gateway.wire.metadata import grpc_context


@accelerated
def plain_inference(
    wire: GrpcRequest,
    message: InferMessage,
    request_id: str,
    inputs: tuple[Tensor, ...],
    spare_id: str,
) -> InferRequest:
    """Return a call for all outputs, without parameters.

    Args:
        wire: Its request.
        message: What was read.
        request_id: Its id.
        inputs: Its tensors.
        spare_id: Of the call, for a request without an id of the client.
    """
    has_bytes = message.columns is not None
    return InferRequest(
        model=message.model,
        context=grpc_context(wire, NAME, NEEDS, None, spare_id, has_bytes),
        inputs=inputs,
        id=request_id,
        parameters=message.parameters,
    )


class Inferences:
    """Reads and writes inferences.

    Args:
        limits: The limits of a message.
        dialect: The dialect of the upstream server.

    Attributes:
        writer: Of responses that are parts of larger messages.
    """

    def __init__(self, limits: MessageLimits, dialect: GrpcDialect) -> None:
        self.writer = InferEncoder()
        self._limits = limits
        self._dialect = dialect
        self._reader = InferReader(limits)
        self._plain_replies = FastInferEncoder(RAW_OUTPUTS)
        # None where each request needs an id, or checks of its model.
        self._plain_calls: FastInferEncoder | None = None
        if dialect.has_versions and not dialect.needs_id:
            self._plain_calls = FastInferEncoder(
                RAW_INPUTS, None if dialect.has_bf16 else Datatype.BF16
            )

    def decode_call(
        self, wire: GrpcRequest, spare_id: str = "", reserves_keys: bool = True
    ) -> InferRequest:
        """Read a client's request; tensors are views into its message.

        Args:
            wire: The request.
            spare_id: Of the call, for a request without an id of the client.
            reserves_keys: Refuse reserved parameters of another type.
        """
        message, request_id, inputs = self._reader.request(wire.view)
        if not message.parameters and not message.outputs and wire.method != STREAM:
            return plain_inference(wire, message, request_id, inputs, spare_id)
        reserved = NO_REQUEST_PARAMETERS
        if message.parameters:
            reserved = split_parameters(message.parameters, self._limits, reserved=reserves_keys)
        form = StreamForm(reserved.empty_final) if wire.method == STREAM else None
        outputs: tuple[RequestedOutput, ...] = ()
        if message.outputs:
            outputs = tuple([_requested(*output, self._limits) for output in message.outputs])
        return InferRequest(
            model=message.model,
            context=grpc_context(wire, NAME, NEEDS, form, spare_id, message.columns is not None),
            inputs=inputs,
            outputs=outputs,
            id=request_id,
            sequence=reserved.sequence,
            priority=reserved.priority,
            timeout_us=reserved.timeout_us,
            parameters=reserved.custom,
        )

    def encode_reply(self, call: Call[Any], reply: InferResponse) -> Sequence[Buffer]:
        """Write the response to *call*; the data of large tensors are not copied."""
        # The response has the caller's id, never one that a server created.
        request_id, outputs = reply.id, reply.outputs
        if isinstance(call, InferRequest):
            request_id = call.id
            if call.outputs:
                outputs = with_c_values(call, reply).outputs
        if not reply.parameters:
            plain = self._plain_replies.write(reply.model, request_id, outputs)
            if plain is not None:
                return plain
        return self.writer.response(reply.model, request_id, reply.parameters, outputs)

    def encode_call(self, call: InferRequest, spare_id: str) -> Sequence[Buffer]:
        """Write a request to an upstream, all tensors raw.

        Args:
            call: The inference.
            spare_id: For a server that needs an id, where the call has none.

        Raises:
            Unsupported: The dialect cannot carry it.
            InvalidRequest: The server would read the version as another one.
        """
        model = call.model
        if not (
            self._plain_calls is None
            or model is None
            or (model.version and not (model.version.isascii() and model.version.isdecimal()))
            or call.parameters
            or call.sequence is not None
            or call.priority
            or call.timeout_us is not None
        ):
            plain = self._plain_calls.write(model, call.id, call.inputs, call.outputs)
            if plain is not None:
                return plain
        return self._written(call, spare_id)

    def decode_reply(
        self,
        call: InferRequest,
        wire: GrpcResponse,
        view: memoryview,
        stream: bool = False,
        final: bool = True,
    ) -> InferResponse:
        """Read an upstream's response; tensors are views into its message.

        Args:
            call: The request.
            wire: The message, or its envelope.
            view: The response itself.
            stream: It is one of any number.
            final: It is the last one, unless it has a mark.

        Raises:
            MalformedMessage: It cannot be read, or belongs to another call.
        """
        where = outputs_in_shared_memory(call.outputs) if call.outputs else NOWHERE
        message, reply_id, outputs = self._reader.response(view, where)
        if call.id and reply_id and reply_id != call.id and self._dialect.echoes_id:
            raise MalformedMessage(f"response has id {reply_id!r}: the request had {call.id!r}")
        parameters = message.parameters
        if FINAL in parameters:
            is_final, parameters = split_final_mark(parameters)
            final = final and is_final
        if call.outputs and (outputs or not stream):
            outputs = self._selected(call, outputs)
        model = message.model
        if not model.name and call.model is not None:
            model = ModelRef(call.model.name, model.version)
        return InferResponse(
            model=model,
            outputs=outputs,
            id=call.id,
            parameters=parameters,
            is_final=final,
            has_nonfinite_words=self._dialect.has_nonfinite_words,
            has_null_infinities=self._dialect.has_null_infinities,
            has_half_in_json=self._dialect.has_half_in_json,
            origin=Origin(NAME, wire),
        )

    def _written(self, call: InferRequest, spare_id: str) -> Sequence[Buffer]:
        model = named_model(call)
        check_version(self._dialect, model)
        parameters = join_parameters(call)
        check_infer(self._dialect, call, parameters)
        request_id = call.id
        if not request_id and self._dialect.needs_id:
            request_id = spare_id or "gateway"
        return self.writer.request(model, request_id, parameters, call.inputs, call.outputs)

    def _selected(self, call: InferRequest, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Check that every requested output is present; drop others where the server does not."""
        wanted = {output.name for output in call.outputs}
        missing = wanted.difference([tensor.name for tensor in outputs])
        if missing:
            raise MalformedMessage(
                f"response lacks the requested output {min(missing)!r}: "
                f"it has {len(outputs)} outputs"
            )
        if self._dialect.can_select:
            return outputs
        return tuple([tensor for tensor in outputs if tensor.name in wanted])


def _requested(name: str, parameters: Parameters, limits: MessageLimits) -> RequestedOutput:
    if not parameters:
        return RequestedOutput(name)
    return requested_output(name, parameters, limits, least_classes=1)
