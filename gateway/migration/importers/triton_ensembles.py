"""Imports ensembles of a Triton repository as pipelines.

A tensor of an ensemble has a name, and a pipeline names the step that makes it. So every value of
`input_map` becomes `request.INPUT` or `STEP.OUTPUT`.

Source: model_config.proto of Triton, `ModelEnsembling`.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

from gateway.migration.importers.text_format import MalformedText, TextField

Leave = Callable[[int, str], None]
"""Notes a setting without an equivalent: its line, and the text."""

_NEWEST: Final = -1
_STEP_KEYS: Final = frozenset({"model_name", "model_version", "input_map", "output_map"})
_KEYS: Final = frozenset(
    {"name", "platform", "max_batch_size", "input", "output", "ensemble_scheduling"}
)


def is_ensemble(config: TextField) -> bool:
    """Return whether a configuration is one of an ensemble."""
    return config.text("platform") == "ensemble" or bool(config.all("ensemble_scheduling"))


def models_of(config: TextField) -> set[str]:
    """Return the models that the steps of an ensemble call."""
    return {step.text("model_name") for step in _steps(config)}


def pipeline_of(config: TextField, signature: dict[str, Any], leave: Leave) -> dict[str, Any]:
    """Return the pipeline of an ensemble, as plain values of its YAML.

    Args:
        config: The configuration of the ensemble.
        signature: Its inputs and outputs.
        leave: Notes what has no equivalent.

    Raises:
        MalformedText: A step uses a tensor that nothing makes, or two steps make the same one.
    """
    for each in config.fields:
        if each.name not in _KEYS:
            leave(each.line, f"{each.name!r} has no equivalent")
    steps = _named(_steps(config))
    sources = {each.text("name"): f"request.{each.text('name')}" for each in config.all("input")}
    for name, step in steps.items():
        for output in step.all("output_map"):
            tensor = output.text("value")
            if tensor in sources:
                raise MalformedText(f"line {output.line}: tensor {tensor!r} has two sources")
            sources[tensor] = f"{name}.{output.text('key')}"
    return {
        "steps": {name: _step(name, step, sources, leave) for name, step in steps.items()},
        "outputs": {
            each.text("name"): _source(sources, each.text("name"), each.line)
            for each in config.all("output")
        },
        "signature": signature,
    }


def _steps(config: TextField) -> list[TextField]:
    return [step for each in config.all("ensemble_scheduling") for step in each.all("step")]


def _named(steps: list[TextField]) -> dict[str, TextField]:
    """Return the steps by their names: the model's, with a number where it is not the first."""
    found: dict[str, TextField] = {}
    for step in steps:
        # A source is STEP.OUTPUT, and `request` is the caller.
        model = step.text("model_name").replace(".", "-")
        name, number = model, 1
        while name in found or name == "request":
            number += 1
            name = f"{model}-{number}"
        found[name] = step
    return found


def _step(name: str, step: TextField, sources: dict[str, str], leave: Leave) -> dict[str, Any]:
    for each in step.fields:
        if each.name not in _STEP_KEYS:
            leave(each.line, f"'ensemble_scheduling.step.{each.name}' has no equivalent")
    made: dict[str, Any] = {}
    if step.text("model_name") != name:
        made["model"] = step.text("model_name")
    version = step.integer("model_version", _NEWEST)
    if version != _NEWEST:
        made["version"] = str(version)
    made["inputs"] = {
        each.text("key"): _source(sources, each.text("value"), each.line)
        for each in step.all("input_map")
    }
    return made


def _source(sources: dict[str, str], tensor: str, line: int) -> str:
    found = sources.get(tensor)
    if found is None:
        raise MalformedText(f"line {line}: no input and no step makes tensor {tensor!r}")
    return found


def without_missing(
    ensembles: dict[str, set[str]], models: Collection[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the ensembles whose steps all exist, and a missing model of each other one.

    Args:
        ensembles: The models of their steps, by name.
        models: The models that are imported.
    """
    kept = dict(ensembles)
    missing: dict[str, str] = {}
    while True:
        known = {*models, *kept}
        gone = {name: min(needed - known) for name, needed in kept.items() if needed - known}
        if not gone:
            return list(kept), missing
        missing |= gone
        kept = {name: needed for name, needed in kept.items() if name not in gone}
