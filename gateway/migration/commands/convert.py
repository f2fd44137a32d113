"""The command `convert`: messages and recorded calls, translated with the codecs."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from gateway.api.protocol import Codec, ProtocolSpec
from gateway.app.build.upstreams import chain_of_server
from gateway.app.chains.upstream import ServerTraits
from gateway.cli.calling.signatures import load_signatures
from gateway.cli.calling.tensors import json_of
from gateway.cli.output import WRONG_USAGE, fail, print_note, print_text, write_bytes
from gateway.ir.calls import Call, InferRequest, InferResponse
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.texts import printable
from gateway.migration.commands.capture import open_capture, print_problems
from gateway.migration.commands.export import array_of
from gateway.migration.replay.convert import (
    TENSORS,
    Converter,
    Reply,
    example_request,
    recorded_call,
    recorded_replies,
)
from gateway.migration.replay.wire_messages import (
    READING_HEADERS,
    Binding,
    head_of,
    read_request,
    read_response,
    write_file,
)
from gateway.policies.signatures import metadata_of
from gateway.registry import protocol, protocol_names
from gateway.service import Service
from gateway.settings.private_files import make_directory
from gateway.settings.signature import SignatureConfig
from gateway.shadow.objects import is_object_url
from gateway.shadow.records.records import RecordedCall, outputs_of

NPZ, TEXT = "npz", "text"
_SUFFIXES: Final = {NPZ: ".npz", TEXT: ".txt"}
# JSON, which is what people read and curl sends; --binary is the form of tritonclient.
_JSON_DIALECT: Final = {"dialect": "mlserver"}
# A reply alone does not tell the id of its request, and this dialect does not compare ids.
_ANY_ID: Final = {"dialect": "kserve"}
_JSON_CODECS: Final = ("oip.http", "grps.http")


@dataclass(frozen=True, slots=True)
class _Form:
    """A protocol over a carrier, as --from and --to name it."""

    spec: ProtocolSpec
    binding: Binding
    codec: Codec[Any, Any]


def convert(  # noqa: PLR0913, PLR0917  # one for each flag
    where: Annotated[
        str,
        typer.Argument(metavar="FILE|DIR|URL", help="A message (its body), or a capture."),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="FORM", help="oip.grpc and so on; or npz, text.")
    ],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="FORM", help="Of FILE: trtis.http, oip.grpc and so on."),
    ] = None,
    path: Annotated[
        str, typer.Option(metavar="PATH", help="Of the request: HTTP path or gRPC method.")
    ] = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME: VALUE", help="HTTP header; repeatable."),
    ] = None,
    signature: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="YAML: `inputs`, `outputs` and `max_batch_size` of the model, or a configuration "
            "with `models: {NAME: {signature: ...}}`.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Model, where the message names none.")
    ] = "",
    reply: Annotated[bool, typer.Option("--reply", help="FILE is a response.")] = False,
    binary: Annotated[
        bool, typer.Option("--binary", help="Binary tensors in oip.http, instead of JSON.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File, or directory for a capture.")
    ] = None,
) -> None:
    """Translate a message, or every call of a capture, to another protocol without a server.

    The path and the headers of the new message go to standard error. Exit status: 0 success, 1 a
    message could not be converted, 2 wrong usage.

    Example: gateway convert request.bin --from trtis.http --to oip.http
    """
    target = None if to in _SUFFIXES else _form_of("--to", to, model, binary=binary)
    signatures = {} if signature is None else load_signatures(signature)
    source = Path(where)
    if not (source.exists() or is_object_url(where)):
        fail(f"{where} does not exist", WRONG_USAGE)
    if source.is_dir() or from_ is None:
        if reply or path or header or from_ is not None:
            fail("a capture has its own protocol, paths and headers", WRONG_USAGE)
        if out is None:
            fail("-o is missing; expected the directory to write", WRONG_USAGE)
        _convert_capture(where, out, to, target, signatures)
        return
    form = _form_of("--from", from_, model, any_id=reply)
    headers = [_pair(text) for text in header or ()]
    converter = _converter(target, signatures)
    try:
        data = source.read_bytes()
        if reply:
            name = ModelRef(model or "model")
            example = example_request(name, converter.signatures(name.name))
            message = read_response(form.binding, data, headers)
            written = asyncio.run(_reply(converter, form.codec, example, message))
        else:
            call = form.codec.decode_call(read_request(form.binding, data, path, headers))
            written = asyncio.run(_request(converter, call))
        text, head = _file_of(to, target, written)
    except GatewayError as error:
        fail(f"{source}: {error.message}")
    except OSError as error:
        fail(f"cannot read {source}: {error.strerror}")
    if head:
        print_note(head)
    write_bytes(out, text)


def _form_of(
    flag: str, name: str, model: str, *, binary: bool = False, any_id: bool = False
) -> _Form:
    """Return the protocol and carrier of a flag; end the command if there is none."""
    protocol_name, _, carrier = name.partition(".")
    forms = [f"{each}.{one}" for each in protocol_names() for one in protocol(each).carriers]
    if protocol_name not in protocol_names() or carrier not in protocol(protocol_name).carriers:
        others = f", {NPZ}, {TEXT}" if flag == "--to" else ""
        fail(f"{flag} is {name!r}; expected one of {', '.join(forms)}{others}", WRONG_USAGE)
    spec = protocol(protocol_name)
    options: dict[str, Any] = {}
    if spec.default_model:
        options[spec.default_model] = model or "model"
    if protocol_name == "oip":
        options |= _ANY_ID if any_id else {} if binary or flag == "--from" else _JSON_DIALECT
    binding = spec.carriers[carrier]
    return _Form(spec, binding, binding.codec(MessageLimits(), spec.options(options)))


def _pair(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        fail(f"--header is {text!r}; expected 'NAME: VALUE'", WRONG_USAGE)
    return name.strip(), value.strip()


def _converter(target: _Form | None, signatures: Mapping[str, SignatureConfig]) -> Converter:
    def metadata(model: str) -> ModelMetadata | None:
        found = signatures.get(model, signatures.get(""))
        return None if found is None else metadata_of(model, found)

    return Converter(_layers, metadata, None if target is None else target.codec)


def _layers(end: Service, needs: frozenset[Need]) -> Service:
    return chain_of_server(end, ServerTraits(needs))


async def _request(converter: Converter, call: Call[Any]) -> Any:
    """Return the message of the target, or the inputs where no codec writes."""
    if converter.target is None:
        return (await converter.complete(call)).inputs
    return await converter.request(call)


async def _reply(
    converter: Converter, source: Codec[Any, Any], example: InferRequest, message: Any
) -> Any:
    """Return the response to a client of the target's protocol, or the outputs."""

    def answer(call: InferRequest) -> Reply:
        try:
            return source.decode_reply(call, message)
        except GatewayError as error:
            if error.origin is None:
                raise
            return error

    codec = converter.target
    if codec is None:
        context = example.context.changed(needs=TENSORS)
        found = await converter.reply(
            example.changed(context=context), example.model, answer, source.needs
        )
        if isinstance(found, GatewayError):
            raise found
        return outputs_of(found)
    client = codec.decode_call(await converter.request(example))
    found = await converter.reply(client, example.model, answer, source.needs)
    if isinstance(found, GatewayError):
        return codec.encode_error(client, found)
    return codec.encode_reply(client, found)


def _file_of(to: str, target: _Form | None, written: Any) -> tuple[bytes, str]:
    """Return the contents of a file, and the head that it does not contain."""
    if target is None:
        return _TENSOR_FILES[to](written), ""
    head = head_of(written, READING_HEADERS)
    lines = [" ".join(str(head[key]) for key in ("method", "path", "status") if key in head)]
    lines += [f"{name}: {value}" for name, value in head.get("headers", ())]
    return write_file(target.binding, written), "\n".join(filter(None, lines))


def _npz(tensors: Sequence[Tensor]) -> bytes:
    arrays = {each.name or f"#{place}": array_of(each) for place, each in enumerate(tensors)}
    buffer = BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy's stub has flags by name
    return buffer.getvalue()


def _text(tensors: Sequence[Tensor]) -> bytes:
    """Return a line for each tensor: name, datatype, shape and elements as JSON."""
    lines = []
    for each in map(json_of, tensors):
        data = json.dumps(each["data"], ensure_ascii=False)
        lines.append(f"{each['name'] or '-'} {each['datatype']}{each['shape']} {data}\n")
    return "".join(lines).encode()


_TENSOR_FILES: Final = {NPZ: _npz, TEXT: _text}


def _convert_capture(
    source: str,
    out: Path,
    to: str,
    target: _Form | None,
    signatures: Mapping[str, SignatureConfig],
) -> None:
    """Write every request and reply of a capture, and `calls.jsonl` with their heads."""
    capture = open_capture(source)
    if out.exists() and any(out.iterdir()):
        fail(f"{out} is not empty", WRONG_USAGE)
    omissions: Counter[str] = Counter()
    try:
        make_directory(out)
        writer = _CaptureWriter(out, to, target, _converter(target, signatures))
        count = asyncio.run(writer.write(capture.calls(), omissions))
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror}")
    print_text(f"{count} calls written to {out}")
    for reason, number in omissions.items():
        print_note(printable(f"gateway: {number} calls left out: {reason}"))
    print_problems(capture.problems)
    if omissions or (not count and Path(source).is_file()):
        hint = "" if count or omissions else "; expected a capture, or --from FORM for a message"
        fail(f"{source}: not all calls are converted{hint}")


class _CaptureWriter:
    """Writes the messages of recorded calls as files of a directory."""

    def __init__(
        self, directory: Path, to: str, target: _Form | None, converter: Converter
    ) -> None:
        self._directory = directory
        self._to = to
        self._target = target
        self._converter = converter
        self._suffix = _SUFFIXES.get(to) or (".json" if to in _JSON_CODECS else ".bin")

    async def write(self, calls: Iterator[RecordedCall], omissions: Counter[str]) -> int:
        """Write all calls and return their number; *left* counts the others by reason."""
        count = 0
        with (self._directory / "calls.jsonl").open("w", encoding="utf-8") as index:
            for record in calls:
                try:
                    messages = await self._messages(record)
                    files = [
                        (name, *_file_of(self._to, self._target, each)) for name, each in messages
                    ]
                except GatewayError as error:
                    omissions[error.message] += 1
                    continue
                for name, data, head in files:
                    file = f"{record.id}.{name}{self._suffix}"
                    (self._directory / file).write_bytes(data)
                    line = {"id": record.id, "file": file, "head": head.splitlines()}
                    index.write(json.dumps(line) + "\n")
                count += 1
        return count

    async def _messages(self, record: RecordedCall) -> list[tuple[str, Any]]:
        """Return the messages of a call by the middle part of their file names."""
        call = recorded_call(record)
        request = await _request(self._converter, call)
        replies = recorded_replies(record)
        codec = self._converter.target
        if codec is None:
            written: list[Any] = [
                each.outputs for each in replies if isinstance(each, InferResponse)
            ]
        else:
            client = codec.decode_call(request)
            written = await self._converter.responses(client, call.model, replies)
        names = [f"reply.{n}" for n in range(len(written))] if len(written) > 1 else ["reply"]
        return [("request", request), *zip(names, written, strict=False)]
