"""The models that the real Triton serves, and their `config.pbtxt`, written out from one table.

What each model computes is in `behaviours.py`, which is copied to every version's `model.py`.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.servers.datatypes import DATATYPES, identity_name

BEHAVIOURS = Path(__file__).parent / "behaviours.py"
TEXT_BEHAVIOURS = Path(__file__).parent / "text_behaviours.py"
LABELS = "labels.txt"


@dataclass(frozen=True)
class Port:
    """An input or an output: name, datatype as the protocol spells it, and shape less the batch."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """One model of the repository; *extra* is configuration text as it stands."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    max_batch_size: int = 0
    versions: tuple[int, ...] = (1,)
    extra: str = ""
    is_ensemble: bool = False
    instances: int = 1
    behaviours: Path = BEHAVIOURS


DECOUPLED = "model_transaction_policy { decoupled: true }"
ALL_VERSIONS = "version_policy { all { } }"
STATEFUL = """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] }
  ]
}"""


def _stateful_with_id(datatype: str) -> str:
    """Return the configuration of sequences whose model is given their ids as *datatype*."""
    control = (
        '{ name: "CORRID" control '
        f"[ {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{datatype} }} ] }},"
    )
    return STATEFUL.replace("control_input [", f"oldest {{ }}\n  control_input [ {control}")


def _add_sub(name: str, datatype: str) -> Model:
    def pair(stem: str) -> tuple[Port, ...]:
        return tuple(Port(f"{stem}{i}", datatype, (16,)) for i in range(2))

    return Model(name, pair("INPUT"), pair("OUTPUT"), max_batch_size=8)


def _identity(name: str, datatype: str, dims: tuple[int, ...], max_batch_size: int = 0) -> Model:
    return Model(
        name,
        (Port("INPUT0", datatype, dims),),
        (Port("OUTPUT0", datatype, dims),),
        max_batch_size=max_batch_size,
    )


def _two_steps(name: str, step: str, datatype: str) -> Model:
    """Return an ensemble whose two steps, both the model *step*, each give one output."""
    steps = ", ".join(
        f'{{ model_name: "{step}" model_version: -1 '
        'input_map { key: "INPUT0" value: "INPUT0" } '
        f'output_map {{ key: "OUTPUT0" value: "{output}" }} }}'
        for output in ("OUTPUT0", "OUTPUT1")
    )
    return Model(
        name,
        (Port("INPUT0", datatype, (-1,)),),
        (Port("OUTPUT0", datatype, (-1,)), Port("OUTPUT1", datatype, (-1,))),
        extra=f"ensemble_scheduling {{ step [ {steps} ] }}",
        is_ensemble=True,
    )


def _identity_dims(datatype: str) -> tuple[int, ...]:
    return (-1, -1) if datatype in {"FP32", "BYTES"} else (-1,)


MODELS: tuple[Model, ...] = (
    _add_sub("add_sub", "INT32"),
    _add_sub("add_sub_string", "BYTES"),
    # The names that tritonclient's own examples ask for.
    _add_sub("simple", "INT32"),
    _add_sub("simple_int8", "INT8"),
    _add_sub("simple_string", "BYTES"),
    _identity("simple_identity", "BYTES", (-1,), max_batch_size=8),
    *(_identity(identity_name(each), each, _identity_dims(each)) for each in DATATYPES),
    Model(
        "classify",
        (Port("SCORES_IN", "FP32", (4,)),),
        (Port("SCORES", "FP32", (4,), labels=("apple", "pear", "plum", "fig")),),
        max_batch_size=4,
    ),
    Model(
        "large_outputs",
        (Port("INPUT0", "INT32", (1,)),),
        (
            Port("LARGE", "FP32", (40_000,)),
            Port("SMALL", "INT32", (4,)),
            Port("VARIABLE", "FP32", (-1,)),
        ),
        max_batch_size=4,
    ),
    _two_steps("ensemble_fp64", identity_name("FP64"), "FP64"),
    _two_steps("ensemble_int32", identity_name("INT32"), "INT32"),
    Model("fail_always", (Port("INPUT0", "INT32", (-1,)),), (Port("OUTPUT0", "INT32", (-1,)),)),
    Model(
        "generate_text",
        (
            Port("text_input", "BYTES", (1,)),
            Port("max_tokens", "INT32", (1,), optional=True),
            Port("stream", "BOOL", (1,), optional=True),
        ),
        (Port("text_output", "BYTES", (1,)),),
        extra=DECOUPLED,
    ),
    Model(
        "generate_bytes",
        (Port("text_input", "BYTES", (1,)),),
        (Port("text_output", "BYTES", (1,)),),
        extra=DECOUPLED,
    ),
    Model("params_echo", (Port("INPUT0", "INT32", (-1,)),), (Port("PARAMS", "BYTES", (1,)),)),
    *(
        Model(
            name, (Port("INPUT0", "FP64", (-1,)),), (Port("OUTPUT0", "FP64", (-1,)),), extra=extra
        )
        for name, extra in (("reciprocal", ""), ("reciprocal_stream", DECOUPLED))
    ),
    Model(
        "repeat_stream",
        (Port("IN", "INT32", (-1,)),),
        (Port("OUT", "INT32", (1,)), Port("IDX", "UINT32", (1,))),
        extra=DECOUPLED,
    ),
    Model(
        "repeat_int32",
        (Port("IN", "INT32", (-1,)), Port("DELAY", "UINT32", (-1,)), Port("WAIT", "UINT32", (1,))),
        (Port("OUT", "INT32", (1,)), Port("IDX", "UINT32", (1,))),
        extra=DECOUPLED,
    ),
    Model(
        "sequence_sum",
        (Port("INPUT", "INT32", (1,)),),
        (Port("OUTPUT", "INT32", (1,)),),
        max_batch_size=4,
        extra=STATEFUL,
    ),
    Model(
        "simple_sequence",
        (Port("INPUT", "INT32", (1,)),),
        (Port("OUTPUT", "INT32", (1,)),),
        max_batch_size=8,
        extra=STATEFUL,
    ),
    Model("slow", (Port("MS", "INT32", (1,)),), (Port("MS_OUT", "INT32", (1,)),)),
    Model(
        "slow_stream",
        (Port("MS", "INT32", (1,)),),
        (Port("MS_OUT", "INT32", (1,)),),
        extra=DECOUPLED,
        instances=2,
    ),
    Model(
        "sum_and_empty",
        (Port("X", "FP32", (-1,)),),
        (Port("SUM", "FP64", (1,)), Port("EMPTY", "FP32", (-1,))),
    ),
    Model(
        "versions",
        (Port("X", "INT32", (1,)),),
        (Port("VERSION", "INT32", (1,)),),
        versions=(1, 3),
        extra=ALL_VERSIONS,
    ),
)

SACRIFICIAL: tuple[Model, ...] = (
    *(
        model
        for model in MODELS
        if model.name
        in {"simple", "identity_fp32", "identity_bytes", "identity_bool", "fail_always"}
    ),
    Model(
        "sequence_number",
        (Port("INPUT", "INT32", (1,)),),
        (Port("OUTPUT", "INT32", (1,)),),
        max_batch_size=4,
        extra=_stateful_with_id("UINT64"),
    ),
    Model(
        "sequence_text",
        (Port("INPUT", "INT32", (1,)),),
        (Port("OUTPUT", "INT32", (1,)),),
        max_batch_size=4,
        extra=_stateful_with_id("STRING"),
    ),
)
"""The few models of a server that is killed and started again many times."""


def _of_texts(
    name: str, inputs: tuple[Port, ...], output: Port, max_batch_size: int = 2, extra: str = ""
) -> Model:
    return Model(name, inputs, (output,), max_batch_size, extra=extra, behaviours=TEXT_BEHAVIOURS)


def _text(name: str) -> Port:
    return Port(name, "BYTES", (1,))


TEXTS: tuple[Model, ...] = (
    _of_texts("embed_text", (_text("text"),), Port("embedding", "FP32", (24,))),
    _of_texts(
        "embed_ids",
        (Port("input_ids", "INT64", (-1,)), Port("attention_mask", "INT64", (-1,))),
        Port("last_hidden_state", "FP32", (-1, 8)),
    ),
    _of_texts("rerank_text", (_text("query"), _text("document")), Port("score", "FP32", (1,))),
    _of_texts("complete_text", (_text("text_input"),), _text("text_output")),
    _of_texts(
        "generate_text",
        (_text("text_input"), Port("max_tokens", "INT32", (1,), optional=True)),
        _text("text_output"),
        max_batch_size=0,
        extra=DECOUPLED,
    ),
)
"""Models of texts, whose batches have at most two rows."""


def write_repository(folder: Path, models: Sequence[Model] = MODELS) -> None:
    """Write *models* into *folder*, which is made and must not exist yet."""
    for model in models:
        home = folder / model.name
        home.mkdir(parents=True)
        (home / "config.pbtxt").write_text(_config(model))
        for labels in (port.labels for port in model.outputs if port.labels):
            (home / LABELS).write_text("".join(f"{label}\n" for label in labels))
        for version in model.versions:
            (home / str(version)).mkdir()
            shutil.copyfile(model.behaviours, home / str(version) / "model.py")


def _config(model: Model) -> str:
    lines = (
        f'name: "{model.name}"',
        'platform: "ensemble"' if model.is_ensemble else 'backend: "python"',
        f"max_batch_size: {model.max_batch_size}",
        f"input [ {', '.join(map(_port, model.inputs))} ]",
        f"output [ {', '.join(map(_port, model.outputs))} ]",
        ""
        if model.is_ensemble
        else f"instance_group [ {{ kind: KIND_CPU count: {model.instances} }} ]",
        model.extra,
    )
    return "\n".join(lines) + "\n"


def _port(port: Port) -> str:
    datatype = "STRING" if port.datatype == "BYTES" else port.datatype
    text = f'name: "{port.name}" data_type: TYPE_{datatype} dims: {list(port.dims)}'
    if port.optional:
        text += " optional: true"
    if port.labels:
        text += f' label_filename: "{LABELS}"'
    return f"{{ {text} }}"
