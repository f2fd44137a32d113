"""What the models of texts compute, run by Triton's python backend; one file for all of them.

As `behaviours.py` it runs in Triton's stub, and imports nothing of this project.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb  # type: ignore[import-not-found]  # only inside Triton

Array = np.ndarray[Any, np.dtype[Any]]


class TritonPythonModel:
    """The class that Triton's python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Choose the behaviour by the model's name; *args* are Triton's."""
        name = args["model_name"]
        self._one = {
            "embed_text": _embed_text,
            "embed_ids": _embed_ids,
            "rerank_text": _rerank_text,
            "complete_text": _complete_text,
        }.get(name)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer *requests*; the model without a behaviour of its own streams words."""
        if self._one is not None:
            return [_guarded(self._one, request) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            for answer in _words(request):
                sender.send(answer)
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None


def _guarded(behaviour: Any, request: Any) -> Any:
    try:
        return behaviour(request)
    except ValueError as error:
        return _failure(str(error))


def _failure(text: str) -> Any:
    return pb.InferenceResponse(output_tensors=[], error=pb.TritonError(text))


def _input(request: Any, name: str) -> Array:
    array: Array = pb.get_input_tensor_by_name(request, name).as_numpy()
    return array


def _texts(request: Any, name: str) -> list[bytes]:
    found = [bytes(each) for each in _input(request, name).reshape(-1)]
    if b"boom!" in found:
        raise ValueError("the model fails on purpose")
    return found


def _response(**outputs: Array) -> Any:
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in outputs.items()])


def _embed_text(request: Any) -> Any:
    """Answer 24 numbers that depend on the bytes of each text."""
    rows = [
        (np.arange(24) * 0.1 - sum(text) / 7).astype(np.float32) for text in _texts(request, "text")
    ]
    return _response(embedding=np.stack(rows))


def _embed_ids(request: Any) -> Any:
    """Answer eight numbers for each token, made of its id and its place."""
    ids = _input(request, "input_ids")
    places = np.arange(ids.shape[1])
    numbers = ids[:, :, None] * 7 + places[None, :, None] * 3 + np.arange(8) * 5
    return _response(last_hidden_state=((numbers % 64 - 32) / 8).astype(np.float32))


def _rerank_text(request: Any) -> Any:
    """Answer the share of the query's words that each document has."""
    pairs = zip(_texts(request, "query"), _texts(request, "document"), strict=True)
    rows = [
        len(set(query.split()) & set(document.split())) / len(set(query.split()))
        for query, document in pairs
    ]
    return _response(score=np.array(rows, np.float32).reshape(-1, 1))


def _complete_text(request: Any) -> Any:
    """Answer the prompts in capitals."""
    texts = [text.upper() for text in _texts(request, "text_input")]
    return _response(text_output=np.array(texts, object).reshape(-1, 1))


def _words(request: Any) -> Iterator[Any]:
    """Yield the words of the prompt, each with the space before it."""
    words = bytes(_input(request, "text_input").reshape(-1)[0]).split(b" ")
    most = pb.get_input_tensor_by_name(request, "max_tokens")
    if most is not None:
        words = words[: int(most.as_numpy().reshape(-1)[0])]
    for number, word in enumerate(words):
        if word == b"boom!":
            yield _failure("the model fails on purpose")
            return
        yield _response(text_output=np.array([b" " + word if number else word], object))
