"""Tasks on texts before models: shapes of calls, division, pooling, tokens and members."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    StreamInferRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import GatewayError, InvalidMember, InvalidOutput
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.ir.text_tasks import (
    CompletionsForm,
    Embed,
    EmbeddingsForm,
    Generate,
    Rerank,
    RerankForm,
    TextForms,
    TokenizerForm,
)
from gateway.policies.complete.policy import Complete
from gateway.policies.texts.completions import StopFinder
from gateway.policies.texts.vectors import cut_rows, pool, round_rows, score_column

MODEL = ModelRef("m")
TOKENIZER = Path(__file__).parents[3] / "golden" / "openai" / "tokenizer.json"
Answer = Callable[[InferRequest], Any]


class TensorModel:
    """A model of tensors that records its calls."""

    def __init__(self, metadata: ModelMetadata, answer: Answer) -> None:
        self.metadata = metadata
        self.answer = answer
        self.calls: list[InferRequest] = []
        self.closed = 0

    async def __call__(self, call: Call[Any], /) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return self.metadata
        if isinstance(call, StreamInferRequest):
            self.calls.append(call.request)
            return self._stream(call.request)
        assert isinstance(call, InferRequest)
        self.calls.append(call)
        return InferResponse(model=MODEL, outputs=self.answer(call))

    async def _stream(self, call: InferRequest) -> AsyncIterator[InferResponse]:
        try:
            for outputs in self.answer(call):
                yield InferResponse(model=MODEL, outputs=outputs, is_final=False)
        finally:
            self.closed += 1


def bytes_in(name: str, *shape: int) -> TensorMetadata:
    return TensorMetadata(name, Datatype.BYTES, shape)


def floats(name: str, *shape: int) -> TensorMetadata:
    return TensorMetadata(name, Datatype.FP32, shape)


def metadata(
    inputs: tuple[TensorMetadata, ...],
    outputs: tuple[TensorMetadata, ...],
    most: int | None = None,
    *,
    decoupled: bool = False,
    **forms: Any,
) -> ModelMetadata:
    declared = {"openai": TextForms(protocol="openai", **forms)} if forms else {}
    return ModelMetadata(
        name="m",
        inputs=inputs,
        outputs=outputs,
        max_batch_size=most,
        decoupled=decoupled,
        declarations=declared,
    )


def texts(*values: str) -> Tensor:
    return items_tensor("", (len(values),), [value.encode() for value in values])


def request(task: Any, *inputs: Tensor) -> InferRequest:
    context = Context(protocol="openai.http", needs=frozenset({Need.TEXTS}))
    return InferRequest(model=MODEL, context=context, inputs=inputs, texts=task)


async def run(model: TensorModel, task: Any, *inputs: Tensor) -> InferResponse:
    return await Complete(model, frozenset())(request(task, *inputs))


def lengths(call: InferRequest) -> tuple[Tensor, ...]:
    """Return a row of two numbers for each text: its length, and one."""
    tensor = call.inputs[0]
    rows = [[len(item), 1] for item in as_items(tensor)]
    return (array_tensor("vector", np.array(rows, np.float32)),)


@pytest.mark.parametrize(
    ("shape", "most", "calls"),
    [
        ((-1,), None, [(3,)]),
        ((-1, 1), 8, [(3, 1)]),
        ((-1, 1), 2, [(2, 1), (1, 1)]),
        ((-1, -1), 2, [(2, 1), (1, 1)]),
        ((-1,), 2, [(2,), (1,)]),
        ((-1,), 0, [(3,)]),
        ((-1, 1), 0, [(3, 1)]),
        ((1,), 0, [(1,), (1,), (1,)]),
        ((), 0, [(), (), ()]),
        ((1, 1), 0, [(1, 1), (1, 1), (1, 1)]),
    ],
)
async def test_texts_have_the_shape_that_the_model_declares(
    shape: tuple[int, ...], most: int | None, calls: list[tuple[int, ...]]
) -> None:
    """Texts become one call, or several where a call has fewer rows, joined in order."""
    model = TensorModel(
        metadata((bytes_in("text", *shape),), (floats("vector", -1, 2),), most), lengths
    )
    reply = await run(model, Embed(), texts("a", "bb", "ccc"))
    assert calls == [call.inputs[0].shape for call in model.calls]
    assert [[1, 1], [2, 1], [3, 1]] == as_numpy(reply.outputs[0]).tolist()


async def test_a_model_whose_output_has_one_row_is_called_for_each_text() -> None:
    """An output without an axis for rows belongs to one text."""
    found = metadata((bytes_in("text", -1),), (floats("vector", 2),), 0)
    model = TensorModel(
        found, lambda call: (array_tensor("vector", as_numpy(lengths(call)[0])[0]),)
    )
    reply = await run(model, Embed(), texts("a", "bb"))
    assert [[1, 1], [2, 1]] == as_numpy(reply.outputs[0]).tolist()


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((bytes_in("a", -1), bytes_in("b", -1)), (floats("vector", -1, 2),)),
        ((floats("a", -1),), (floats("vector", -1, 2),)),
        ((bytes_in("a", -1),), (floats("v", -1, 2), floats("w", -1, 2))),
        ((bytes_in("a", -1),), (bytes_in("v", -1),)),
        ((bytes_in("a", -1, 3),), (floats("vector", -1, 2),)),
        ((bytes_in("a", -1),), (floats("vector", -1, 2, 3, 4),)),
    ],
)
async def test_other_models_are_refused_with_what_they_have(
    inputs: tuple[TensorMetadata, ...], outputs: tuple[TensorMetadata, ...]
) -> None:
    """The text shows the tensors of the model, and what is expected of them."""
    model = TensorModel(metadata(inputs, outputs), lengths)
    with pytest.raises(InvalidMember, match="cannot be used for embeddings") as raised:
        await run(model, Embed(), texts("a"))
    assert ("model", "unsupported_model") == (raised.value.member, raised.value.reason)
    assert inputs[0].name in raised.value.message
    assert [] == model.calls


@pytest.mark.parametrize(
    ("allowed", "wanted", "reason"),
    [
        (False, 1, "unsupported_parameter"),
        ((3,), 1, "unsupported_parameter"),
        (True, 3, ""),
        ((1,), 1, None),
        (True, 1, None),
        (False, 2, None),
    ],
)
async def test_dimensions(allowed: Any, wanted: int, reason: str | None) -> None:
    """The full size is always allowed, a larger one never, a smaller one where it is declared."""
    form = EmbeddingsForm(dimensions=allowed)
    model = TensorModel(
        metadata((bytes_in("text", -1),), (floats("vector", -1, 2),), embeddings=form), lengths
    )
    if reason is None:
        reply = await run(model, Embed(dimensions=wanted), texts("a"))
        assert (1, wanted) == reply.outputs[0].shape
        return
    with pytest.raises(InvalidMember) as raised:
        await run(model, Embed(dimensions=wanted), texts("a"))
    assert ("dimensions", reason) == (raised.value.member, raised.value.reason)
    assert [] == model.calls


async def test_prefixes_stand_before_texts() -> None:
    """`input_type` chooses a prefix, and a model without it refuses the member."""
    form = EmbeddingsForm(prefixes={"query": "q: "}, default_prefix="query")
    found = metadata((bytes_in("text", -1),), (floats("vector", -1, 2),), embeddings=form)
    model = TensorModel(found, lengths)
    await run(model, Embed(), texts("a"))
    assert [b"q: a"] == list(as_items(model.calls[0].inputs[0]))
    with pytest.raises(InvalidMember, match="input_type"):
        await run(model, Embed(input_type="passage"), texts("a"))


async def test_all_or_nothing() -> None:
    """If one call fails, the request fails."""

    def answer(call: InferRequest) -> tuple[Tensor, ...]:
        if b"x" in list(as_items(call.inputs[0])):
            raise GatewayError("boom")
        return lengths(call)

    found = metadata((bytes_in("text", -1),), (floats("vector", -1, 2),), 1)
    with pytest.raises(GatewayError, match="boom"):
        await run(TensorModel(found, answer), Embed(), texts("a", "x"))


IDS = TensorMetadata("input_ids", Datatype.INT32, (-1, -1))
MASK = TensorMetadata("attention_mask", Datatype.INT64, (-1, -1))


def tokenizer_form(**fields: Any) -> TokenizerForm:
    pytest.importorskip("tokenizers")
    return TokenizerForm(text=TOKENIZER.read_text("utf-8"), **fields)


def ids_as_states(call: InferRequest) -> tuple[Tensor, ...]:
    """Return the ids as one number of each token; NaN where there is padding."""
    ids, mask = (as_numpy(tensor).astype(np.float32) for tensor in call.inputs)
    return (array_tensor("last_hidden_state", np.where(mask > 0, ids, np.nan)[:, :, None]),)


def ids_model(form: EmbeddingsForm, most: int | None = None) -> TensorModel:
    found = metadata((IDS, MASK), (floats("last_hidden_state", -1, -1, 1),), most, embeddings=form)
    return TensorModel(found, ids_as_states)


@pytest.mark.parametrize("pads_left", [False, True])
@pytest.mark.parametrize(
    ("pooling", "expected"), [("mean", [20.5, 16.0]), ("cls", [2, 2]), ("last", [3, 3])]
)
async def test_padding_is_in_no_row(pooling: Any, expected: list[float], pads_left: bool) -> None:
    """Rows of other lengths pad a row, on either side, and change nothing of it."""
    form = EmbeddingsForm(tokenizer=tokenizer_form(pads_left=pads_left), pooling=pooling)
    model = ids_model(form)
    reply = await run(model, Embed(), texts("hello world", "hello hello hello"))
    (call,) = model.calls
    assert [Datatype.INT32, Datatype.INT64] == [tensor.datatype for tensor in call.inputs]
    assert (2, 5) == call.inputs[0].shape
    found = as_numpy(reply.outputs[0])[:, 0].tolist()
    if pooling == "mean":
        expected = [(2 + 38 + 39 + 3) / 4, (2 + 38 * 3 + 3) / 5]
        assert np.array(expected, np.float32).tolist() == found
    else:
        assert expected == found
    assert 9 == reply.parameters["prompt_tokens"]


async def test_padded_calls_are_bounded() -> None:
    """Rows times the longest never exceed `max_total_tokens`; a request has no more tokens."""
    form = EmbeddingsForm(tokenizer=tokenizer_form(max_total_tokens=12), pooling="cls")
    model = ids_model(form)
    await run(model, Embed(), texts("hello", "hello hello hello", "hello"))
    assert [(2, 5), (1, 3)] == [call.inputs[0].shape for call in model.calls]
    with pytest.raises(InvalidMember) as raised:
        await run(model, Embed(), texts(*["hello hello"] * 4))
    assert "context_length_exceeded" == raised.value.reason


async def test_texts_of_very_different_lengths_have_little_padding() -> None:
    """A request with a few long texts is several calls, and its rows keep their order."""
    form = EmbeddingsForm(tokenizer=tokenizer_form(), pooling="mean")
    values = ["hello " * 200, *["hello"] * 30, "world " * 150, "hello world"]
    model = ids_model(form)
    reply = await run(model, Embed(), texts(*values))
    assert [(31, 4), (2, 202)] == [call.inputs[0].shape for call in model.calls]
    alone = [
        as_numpy((await run(ids_model(form), Embed(), texts(value))).outputs[0])[0, 0]
        for value in values
    ]
    assert [float(each) for each in alone] == as_numpy(reply.outputs[0])[:, 0].tolist()


async def test_long_texts_are_cut_or_refused() -> None:
    """Cutting keeps the special tokens; ids of a client are never cut."""
    cut = ids_model(EmbeddingsForm(tokenizer=tokenizer_form(max_tokens=4), pooling="last"))
    reply = await run(cut, Embed(), texts("hello " * 100_000))
    assert ([2, 38, 38, 3], 4) == (
        as_numpy(cut.calls[0].inputs[0])[0].tolist(),
        reply.parameters["prompt_tokens"],
    )
    strict = ids_model(
        EmbeddingsForm(tokenizer=tokenizer_form(max_tokens=4, truncate=False), pooling="last")
    )
    ids = (array_tensor("", np.array([2, 38, 38, 38, 3])), array_tensor("", np.array([5])))
    for model, inputs in ((strict, (texts("hello " * 9),)), (cut, ids)):
        with pytest.raises(InvalidMember) as raised:
            await run(model, Embed(), *inputs)
        assert "context_length_exceeded" == raised.value.reason


@pytest.mark.parametrize("bad", [-1, 45])
async def test_ids_must_be_in_the_vocabulary(bad: int) -> None:
    """An id that the tokenizer does not have is refused."""
    model = ids_model(EmbeddingsForm(tokenizer=tokenizer_form(), pooling="last"))
    ids = (array_tensor("", np.array([2, bad])), array_tensor("", np.array([2])))
    with pytest.raises(InvalidMember, match="from 0 to 44"):
        await run(model, Embed(), *ids)


def test_vectors_are_cut_before_they_are_normalised() -> None:
    """The length of a cut row is one, and a row of zeros stays one."""
    rows = np.array([[3, 4, 12], [0, 0, 0]], np.float32)
    assert [[0.6, 0.8], [0, 0]] == cut_rows(rows, 2, normalize=True).tolist()
    assert np.shares_memory(rows, cut_rows(rows, 2, normalize=False))


def test_pooling_has_one_rounding() -> None:
    """The mean is that of FP64: small numbers beside large ones count."""
    states = np.array([[[1e8], [1.0], [-1e8]]], np.float32)
    assert [[np.float32(1 / 3)]] == round_rows(pool(states, "mean", [np.arange(3)])).tolist()


def test_scores() -> None:
    """Sigmoid and softmax are those of FP64, rounded once."""
    columns = np.array([[0.0, 1.0], [800.0, -800.0]], np.float32)
    assert [0.5, 1.0] == score_column(columns, "sigmoid", 0).tolist()
    expected = np.float32(np.e / (1 + np.e))
    assert [expected, 0.0] == score_column(columns, "softmax", 1).tolist()
    assert [1.0, -800.0] == score_column(columns, "none", 1).tolist()


def overlap(call: InferRequest) -> tuple[Tensor, ...]:
    queries, documents = (list(as_items(tensor)) for tensor in call.inputs)
    query = bytes(queries[0])
    return (array_tensor("s", np.array([query in bytes(each) for each in documents], np.float32)),)


@pytest.mark.parametrize(
    ("query", "most", "shapes"),
    [
        ((1,), 0, [((1,), (3,))]),
        ((), 0, [((), (3,))]),
        ((-1,), None, [((3,), (3,))]),
        ((-1, 1), 2, [((2, 1), (2,)), ((1, 1), (1,))]),
    ],
)
async def test_a_query_has_one_row_or_all(
    query: tuple[int, ...], most: int | None, shapes: list[Any]
) -> None:
    """A query with an axis for rows is repeated; documents are divided."""
    found = metadata((bytes_in("query", *query), bytes_in("passage", -1)), (floats("s", -1),), most)
    model = TensorModel(found, overlap)
    reply = await run(model, Rerank(), texts("a"), texts("ba", "c", "a"))
    assert [1, 0, 1] == as_numpy(reply.outputs[0]).tolist()
    assert shapes == [tuple(each.shape for each in call.inputs) for call in model.calls]


async def test_pairs_and_columns() -> None:
    """A pair is one text, whatever braces the query has, and a column is one of the output's."""
    form = RerankForm(pair="{query}|{document}", column=1)
    found = metadata((bytes_in("t", -1),), (floats("s", -1, 2),), rerank=form)
    model = TensorModel(
        found, lambda call: (array_tensor("s", np.array([[0, 1], [2, 3]], np.float32)),)
    )
    reply = await run(model, Rerank(), texts("{document}"), texts("{query}", "b"))
    assert [b"{document}|{query}", b"{document}|b"] == list(as_items(model.calls[0].inputs[0]))
    assert [1, 3] == as_numpy(reply.outputs[0]).tolist()


def chat_model(answer: Answer, *more: TensorMetadata, **fields: Any) -> TensorModel:
    inputs = (bytes_in("text_input", -1), *more)
    return TensorModel(metadata(inputs, (bytes_in("text_output", -1),), 0, **fields), answer)


def words(*pieces: bytes) -> Answer:
    return lambda _call: [(items_tensor("text_output", (1,), [piece]),) for piece in pieces]


async def stream(model: TensorModel, task: Generate, *prompts: str) -> list[tuple[str, Any]]:
    """Return the pieces of a stream, each with what it says about the end."""
    call = request(task, texts(*prompts))
    items = await Complete(model, frozenset())(
        StreamInferRequest(model=MODEL, context=call.context, request=call)
    )
    return [
        (
            b"".join(map(bytes, as_items(item.outputs[0]))).decode() if item.outputs else "",
            item.parameters.get("finish_reason"),
        )
        async for item in items
    ]


async def test_a_stop_text_across_pieces_ends_a_stream_and_the_model() -> None:
    """What may begin a stop text is held back, and the model is closed where it is found."""
    model = chat_model(words(b"one t", b"wo thr", b"ee", b"never"), decoupled=True)
    task = Generate(stop=("two three",), wants_stream=True)
    assert [("one ", None), ("", "stop")] == await stream(model, task, "p")
    assert 1 == model.closed


async def test_characters_are_whole_in_each_piece() -> None:
    """Bytes of a cut character wait for the next piece; bytes that are no text are an error."""
    model = chat_model(words(b"a\xc3", b"\xa4b"), decoupled=True)
    assert [("a", None), ("äb", None), ("", "stop")] == await stream(model, Generate(), "p")
    for pieces in ((b"a\xc3",), (b"\xff",)):
        with pytest.raises(InvalidOutput):
            await stream(chat_model(words(*pieces), decoupled=True), Generate(), "p")


async def test_a_decoupled_model_is_collected_for_each_prompt() -> None:
    """Without a stream the pieces are one text, and each prompt has one."""
    model = chat_model(words(b"a", b"b"), decoupled=True)
    reply = await run(model, Generate(), texts("p", "q"))
    assert [b"ab", b"ab"] == list(as_items(reply.outputs[0]))


async def test_members_become_inputs_parameters_or_json() -> None:
    """A member goes to the input of its name, or where the declaration says."""
    form = CompletionsForm(
        names={"stop": "stop_words"}, parameters=("max_tokens",), ignore=("seed",)
    )
    model = chat_model(
        lambda call: (items_tensor("text_output", (1,), [b"x"]),),
        TensorMetadata("temperature", Datatype.FP32, (1,)),
        TensorMetadata("top_k", Datatype.INT32, (1, -1)),
        bytes_in("stop_words", -1),
        TensorMetadata("stream", Datatype.BOOL, (1,)),
        completions=form,
    )
    members = {"temperature": 0.5, "top_k": 4, "max_tokens": 7, "seed": 1, "top_p": 1}
    await run(model, Generate(members=members, stop=("a", "b")), texts("p"))
    (call,) = model.calls
    found = {tensor.name: tensor for tensor in call.inputs}
    assert (0.5, (1, 1)) == (as_numpy(found["temperature"])[0], found["top_k"].shape)
    assert [b"a", b"b"] == list(as_items(found["stop_words"]))
    assert [False] == as_numpy(found["stream"]).tolist()
    assert {"max_tokens": 7} == dict(call.parameters)


async def test_members_become_one_json_input() -> None:
    """`sampling` gets all members, as Triton's backend of vLLM reads them."""
    model = chat_model(
        lambda call: (items_tensor("text_output", (1,), [b"x"]),),
        bytes_in("sampling_parameters", 1),
        completions=CompletionsForm(sampling="sampling_parameters"),
    )
    await run(model, Generate(members={"max_tokens": 7}, stop=("a",)), texts("p"))
    (item,) = as_items(model.calls[0].inputs[1])
    assert {"max_tokens": 7, "stop": ["a"]} == json.loads(bytes(item))


async def test_a_member_without_a_place_is_refused_with_the_line_to_add() -> None:
    """Only defaults of the API are dropped."""
    model = chat_model(lambda call: (items_tensor("text_output", (1,), [b"x"]),))
    await run(model, Generate(members={"temperature": 1, "echo": False}), texts("p"))
    with pytest.raises(InvalidMember, match=r"ignore: \[temperature\]") as raised:
        await run(model, Generate(members={"temperature": 0.5}), texts("p"))
    assert "temperature" == raised.value.member


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["ab", "ab", "c"], ["abc"], "ab"),
        (["aa", "ab"], ["aab"], "a"),
        (["x", "y"], ["xyz"], "xy"),
        (["one two"], ["two", "one"], ""),
        (["abc"], [], "abc"),
    ],
)
def test_stop_texts(pieces: list[str], stops: list[str], expected: str) -> None:
    """The text ends before the first stop text, in whatever pieces it comes."""
    finder = StopFinder(stops)
    assert expected == "".join(map(finder.add, pieces)) + finder.end()
