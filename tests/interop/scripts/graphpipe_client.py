"""What the client of Oracle's package `graphpipe` does and sees, as one JSON document.

    python graphpipe_client.py BASE-URL [CHECK ...]

Models are found below the URL: `add_sub`, `add_sub_string`, `identity_*`, `params_echo`. Arrays are
printed with dtype, shape and bytes, so that nothing is rounded on the way.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import requests
from graphpipe import remote

from tests.interop.scripts.arrays import printed

TIMEOUT_S = 20

# The client waits for ever by itself.
requests.post = partial(requests.post, timeout=TIMEOUT_S)

SUM, DIFFERENCE = "OUTPUT0", "OUTPUT1"
LEFT = np.arange(16, dtype=np.int32).reshape(1, 16)
RIGHT = np.full((1, 16), 3, np.int32)


def numeric(dtype: str) -> Any:
    """Return values at the ends of a type; floats with what not an integer has."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        info = np.finfo(kind)
        specials = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, 0.1]
        return np.array(specials, kind)
    ends = np.iinfo(kind)
    return np.array([ends.min, 0, 1, ends.max - 1, ends.max], kind)


NUMERIC = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64",
)  # fmt: skip
NAMES = {"float16": "fp16", "float32": "fp32", "float64": "fp64"}


def model_of(dtype: str) -> str:
    """Return the model that gives an array of *dtype* back."""
    return f"identity_{NAMES.get(dtype, dtype)}"


def checks(base: str) -> dict[str, Callable[[], Any]]:
    """Return everything that is done, by name."""
    found: dict[str, Callable[[], Any]] = {}
    for dtype in NUMERIC:
        values = numeric(dtype)
        # Triton's model of FP32 takes two dimensions.
        values = values.reshape(1, -1) if dtype == "float32" else values
        found[f"type {dtype}"] = partial(remote.execute, f"{base}/{model_of(dtype)}", values)
    add, text = f"{base}/add_sub", f"{base}/add_sub_string"
    multi = partial(remote.execute_multi, add)
    whole = f"{base}/identity_fp32"
    echo = partial(remote.execute_multi, f"{base}/params_echo", [np.array([1], np.int32)])
    strings = f"{base}/identity_bytes"
    return found | {
        "by name": lambda: multi([LEFT, RIGHT], ["INPUT0", "INPUT1"], [SUM, DIFFERENCE]),
        "by place": lambda: multi([LEFT, RIGHT], None, None),
        "by empty names": lambda: multi([LEFT, RIGHT], ["", ""], [""]),
        "swapped names": lambda: multi([RIGHT, LEFT], ["INPUT1", "INPUT0"], [DIFFERENCE, SUM]),
        "name at its place": lambda: multi([LEFT, RIGHT], ["", "INPUT1"], [DIFFERENCE]),
        "one output": lambda: multi([LEFT, RIGHT], None, [DIFFERENCE]),
        "output twice": lambda: multi([LEFT, RIGHT], None, [SUM, SUM]),
        "empty output name": lambda: multi([LEFT, RIGHT], None, [SUM, ""]),
        "batch": lambda: multi([LEFT.repeat(4, 0), RIGHT.repeat(4, 0)], None, None),
        "execute": lambda: remote.execute(whole, np.ones((2, 3), np.float32), "INPUT0", SUM),
        "fortran order": lambda: remote.execute(whole, np.asfortranarray(np.eye(2, 3, dtype="f4"))),
        "no elements": lambda: remote.execute(whole, np.zeros((0, 3), np.float32)),
        "large": lambda: remote.execute(whole, np.arange(150_528, dtype="f4").reshape(224, 672)),
        "text": lambda: remote.execute(strings, np.array([["ä", "模型", ""]])),
        "bytes": lambda: remote.execute(strings, np.array([[b"\xff\x00\xfe", b"x"]], object)),
        "many strings": lambda: remote.execute(strings, np.array([[str(i) for i in range(5000)]])),
        "numbers as text": lambda: remote.execute_multi(
            text, [LEFT.astype(str), RIGHT.astype(str)], None, None
        ),
        "truths": lambda: remote.execute(f"{base}/identity_bool", np.array([0, 1, 1], np.uint8)),
        "truths of int8": lambda: remote.execute(
            f"{base}/identity_bool", np.array([0, -1, 2], np.int8)
        ),
        "halves": lambda: remote.execute(
            f"{base}/identity_bf16", np.array([-0.0, 1.5, np.inf, -3.140625], np.float32)
        ),
        "config text": lambda: echo(None, None, "as it is"),
        "config object": lambda: echo(
            None, None, '{"request_id": "r7", "parameters": {"beams": 4, "mode": "fast"}}'
        ),
        "no config": lambda: echo(None, None),
        "metadata": lambda: metadata(add),
        "metadata of truths": lambda: remote.get_input_types(f"{base}/identity_bool"),
        "metadata of halves": lambda: remote.get_output_types(f"{base}/identity_bf16"),
        "metadata of strings": lambda: [
            remote.get_input_names(strings),
            str(remote.metadata(strings).Inputs(0).Type()),
        ],
        "shown": lambda: page_summary("GET", add),
        "head": lambda: page_summary("HEAD", add),
        "unknown model": lambda: remote.execute(f"{base}/nobody", LEFT),
        "metadata of an unknown model": lambda: remote.metadata(f"{base}/nobody"),
        "unknown input": lambda: multi([LEFT, RIGHT], ["INPUT0", "INPUT9"], None),
        "unknown output": lambda: multi([LEFT, RIGHT], None, ["OUTPUT9"]),
        "too many inputs": lambda: multi([LEFT] * 3, None, None),
        "too few inputs": lambda: multi([LEFT], None, None),
        "input twice": lambda: multi([LEFT, RIGHT], ["INPUT0", "INPUT0"], None),
        "names missing": lambda: multi([LEFT, RIGHT], ["INPUT0"], None),
        "another type": lambda: multi([LEFT.astype("f8"), RIGHT], None, None),
        "another shape": lambda: multi([LEFT.reshape(16, 1), RIGHT], None, None),
        "inexact halves": lambda: remote.execute(
            f"{base}/identity_bf16", np.array([0.1], np.float32)
        ),
        "refused method": lambda: page_summary("PUT", add),
    }


def metadata(uri: str) -> dict[str, Any]:
    """Return everything that the client can learn of a model."""
    message = remote.metadata(uri)
    return {
        "name": message.Name().decode(),
        "server": message.Server().decode(),
        "described": message.Description() is not None and message.Version() is not None,
        "inputs": remote.get_input_names(uri),
        "outputs": remote.get_output_names(uri),
        "input_types": remote.get_input_types(uri),
        "output_types": remote.get_output_types(uri),
        "input_shapes": remote.get_input_shapes(uri),
        "output_shapes": remote.get_output_shapes(uri),
    }


def page_summary(method: str, uri: str) -> dict[str, Any]:
    """Return what a browser would be shown."""
    answer = requests.request(method, uri, timeout=TIMEOUT_S)
    body = answer.json() if answer.content and answer.status_code == requests.codes.ok else {}
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    names = [[each["Name"], each["Type"]] for each in body.get("Inputs", [])]
    return {"status": answer.status_code, "type": kind, "inputs": names}


def as_json(value: Any) -> Any:
    """Return *value* as JSON has it."""
    if isinstance(value, list):
        return [as_json(each) for each in value]
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, np.dtype | type):
        return np.dtype(value).name
    return printed(value) if isinstance(value, np.ndarray) else value


def seen(check: Callable[[], Any]) -> Any:
    """Return what a check gives, or how it fails."""
    try:
        return as_json(check())
    except Exception as error:  # noqa: BLE001  # the client raises plain Exception
        words = error.args[0] if error.args else ""
        text = words.decode() if isinstance(words, bytes) else str(words)
        return {"error": text, "kind": type(error).__name__}


def main() -> None:
    """Do everything and print what was seen."""
    base, *names = sys.argv[1:]
    all_checks = checks(base.rstrip("/"))
    found = {name: seen(all_checks[name]) for name in names or all_checks}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
