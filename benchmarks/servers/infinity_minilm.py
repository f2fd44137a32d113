"""Infinity with all-MiniLM-L6-v2 in ONNX, in infinity's environment: FOLDER and PORT are given.

Its own engine for ONNX needs PyTorch. This one is put in the place of its engine without weights.
It does what that one does with the same packages: tokenizers, onnxruntime, numpy. The HTTP server,
the queue, the order by length and the batches are infinity's own.
"""

# mypy: ignore-errors
# Infinity is not installed where mypy runs.

import sys
from pathlib import Path

import numpy as np
import onnxruntime
from infinity_emb.cli import cli
from infinity_emb.transformer.embedder.dummytransformer import DummyTransformer
from infinity_emb.transformer.quantization.interface import quant_embedding_decorator
from tokenizers import Tokenizer

FOLDER, PORT = Path(sys.argv[1]), sys.argv[2]
MAX_TOKENS = 256


class MiniLm:
    """The parts of an engine: tokens, states, rows."""

    def __init__(self, *, engine_args: object) -> None:
        self.engine_args = engine_args
        self._tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._session = onnxruntime.InferenceSession(str(FOLDER / "1" / "model.onnx"))

    def encode_pre(self, sentences: list[str]) -> dict[str, np.ndarray]:
        """Return the tokens of some texts, padded to the longest."""
        found = self._tokenizer.encode_batch(sentences)
        return {
            "input_ids": np.array([each.ids for each in found], np.int64),
            "attention_mask": np.array([each.attention_mask for each in found], np.int64),
            "token_type_ids": np.array([each.type_ids for each in found], np.int64),
        }

    def encode_core(self, features: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the states of the tokens, and the mask."""
        (states,) = self._session.run(None, features)
        return states, features["attention_mask"]

    @quant_embedding_decorator()
    def encode_post(self, embedding: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
        """Return the mean of each text, of length one."""
        states, mask = embedding
        weights = mask[:, :, None].astype(np.float32)
        rows = (states * weights).sum(axis=1) / weights.sum(axis=1)
        return list(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    def tokenize_lengths(self, sentences: list[str]) -> list[int]:
        """Return the number of tokens of each text."""
        return [len(each) for each in self._tokenizer.encode_batch(sentences)]


for name in ("__init__", "encode_pre", "encode_core", "encode_post", "tokenize_lengths"):
    setattr(DummyTransformer, name, getattr(MiniLm, name))
options = ("--engine", "debugengine", "--model-id", "local/minilm", "--served-model-name", "minilm")
address = ("--host", "127.0.0.1", "--port", PORT, "--url-prefix", "/v1")
sys.argv = ["infinity_emb", "v2", *options, *address]
cli()
