"""The models that the real MLServer serves, and their settings files, written from one table.

What each computes is in `runtimes.py`, which is copied beside the settings and imported there.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.servers.datatypes import DATATYPES, identity_name

RUNTIMES = Path(__file__).parent / "runtimes.py"
MODULE = "interop_runtimes"

UNKNOWN_DATATYPES = frozenset({"BF16"})
"""What MLServer's validation refuses as a datatype."""

Ports = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Inputs or outputs: name, datatype and shape."""

_PAIR = ("INT32", (-1, 16))
_INPUT: Ports = (("INPUT0", "INT32", (-1,)),)


@dataclass(frozen=True)
class Model:
    """One model: its name, the class in `runtimes.py`, its inputs, outputs and versions."""

    name: str
    runtime: str
    inputs: Ports
    outputs: Ports
    versions: tuple[str, ...] = ("1",)


def _models() -> Iterator[Model]:
    yield Model(
        "add_sub",
        "AddSub",
        (("INPUT0", *_PAIR), ("INPUT1", *_PAIR)),
        (("OUTPUT0", *_PAIR), ("OUTPUT1", *_PAIR)),
    )
    for datatype in DATATYPES:
        if datatype not in UNKNOWN_DATATYPES:
            yield Model(
                identity_name(datatype),
                "Identity",
                (("INPUT0", datatype, (-1,)),),
                (("OUTPUT0", datatype, (-1,)),),
            )
    yield Model("params_echo", "ParamsEcho", _INPUT, (("PARAMS", "BYTES", (1,)),))
    yield Model("texts_or_null", "TextsOrNull", (("X", "BYTES", (-1,)),), (("Y", "BYTES", (-1,)),))
    yield Model("fail_always", "Fail", _INPUT, (("OUTPUT0", "INT32", (-1,)),))
    yield Model(
        "repeat_stream",
        "Repeat",
        (("IN", "INT32", (-1,)),),
        (("OUT", "INT32", (1,)), ("IDX", "UINT32", (1,))),
    )
    yield Model("slow", "Slow", (("MS", "INT32", (1,)),), (("MS_OUT", "INT32", (1,)),))
    yield Model(
        "sum_and_empty",
        "SumAndEmpty",
        (("X", "FP32", (-1,)),),
        (("SUM", "FP64", (1,)), ("EMPTY", "FP32", (-1,))),
    )
    yield Model(
        "versions",
        "Versions",
        (("X", "INT32", (1,)),),
        (("VERSION", "INT32", (1,)),),
        versions=("1", "3"),
    )


MODELS: tuple[Model, ...] = tuple(_models())


SACRIFICIAL: tuple[Model, ...] = (
    *(
        model
        for model in MODELS
        if model.name in {"identity_fp32", "sum_and_empty", "repeat_stream"}
    ),
    Model("count_text", "CountText", (("X", "BYTES", (-1,)),), (("COUNT", "INT64", (1,)),)),
)
"""The models of a server that tests hurt."""


def write_repository(folder: Path, models: Sequence[Model] = MODELS) -> None:
    """Write `runtimes.py` and the settings of every one of *models* into *folder*."""
    folder.mkdir(parents=True)
    shutil.copyfile(RUNTIMES, folder / f"{MODULE}.py")
    for model in models:
        for version in model.versions:
            home = folder / f"{model.name}-{version}"
            home.mkdir()
            (home / "model-settings.json").write_text(json.dumps(_settings(model, version)))


def _settings(model: Model, version: str) -> dict[str, object]:
    return {
        "name": model.name,
        "implementation": f"{MODULE}.{model.runtime}",
        "platform": "interop",
        "versions": list(model.versions),
        "parameters": {"version": version},
        "inputs": [_port(*port) for port in model.inputs],
        "outputs": [_port(*port) for port in model.outputs],
    }


def _port(name: str, datatype: str, shape: tuple[int, ...]) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}
