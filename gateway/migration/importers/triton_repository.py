"""Imports a model repository of Triton, or of TensorRT Inference Server, as a configuration.

Every `config.pbtxt` is read. What has an equivalent in the gateway is mapped, and the rest is
named.
Ensembles become pipelines.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.migration.importers.imported import Unmapped
from gateway.migration.importers.text_format import MalformedText, TextField, parse_fields
from gateway.migration.importers.triton_ensembles import (
    is_ensemble,
    models_of,
    pipeline_of,
    without_missing,
)

_BACKENDS: Final[Mapping[str, str]] = {
    "onnxruntime": "onnx",
    "onnxruntime_onnx": "onnx",
    "pytorch": "torch",
    "pytorch_libtorch": "torch",
}
_FILES: Final[Mapping[str, str]] = {"model.onnx": "onnx", "model.pt": "torch"}
_DEVICES: Final[Mapping[str, str]] = {
    "KIND_AUTO": "auto",
    "KIND_GPU": "cuda",
    "KIND_CPU": "cpu",
}
# What the model file itself says, or the key of another row says already.
_IMPLIED: Final = frozenset({"name", "backend", "platform", "max_batch_size"})
_OF_TENSORS: Final = frozenset({"name", "data_type", "dims"})
_LABELS: Final = "label_filename"
# What a key says that is written out, and that it would say without being written.
_DEFAULTS: Final = frozenset({"false", "FORMAT_NONE"})


@dataclass(slots=True)
class ImportedRepository:
    """The result of an import.

    Attributes:
        models: The key `models` of the configuration.
        pipelines: The key `pipelines`: the ensembles.
        unmapped: What has no equivalent.
    """

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    pipelines: dict[str, dict[str, Any]] = field(default_factory=dict)
    unmapped: list[Unmapped] = field(default_factory=list)


def import_repository(repository: Path) -> ImportedRepository:
    """Import all models of a repository.

    Raises:
        OSError: The repository cannot be read.
    """
    found = ImportedRepository()
    ensembles: dict[str, tuple[Path, set[str]]] = {}
    for folder in sorted(each for each in repository.iterdir() if each.is_dir()):
        model = _ModelImport(folder, found)
        model.run()
        if model.ensemble is not None:
            name, needed = model.ensemble
            ensembles[name] = model.file, needed
    kept, missing = without_missing(
        {name: needed for name, (_, needed) in ensembles.items()}, found.models
    )
    found.pipelines = {name: found.pipelines[name] for name in kept}
    for name, model_name in missing.items():
        text = f"ensemble left out: its model {model_name!r} is not imported"
        found.unmapped.append(Unmapped(str(ensembles[name][0]), 1, text))
    return found


def import_model(folder: Path, name: str) -> ImportedRepository:
    """Import the model of a folder under another name, whatever its configuration calls it.

    Raises:
        OSError: The folder cannot be read.
    """
    found = ImportedRepository()
    _ModelImport(folder, found).run()
    for model in list(found.models.values()):  # at most one
        found.models = {name: model}
    found.pipelines = {}
    return found


class _ModelImport:
    """The import of one model.

    Attributes:
        file: Its configuration.
        ensemble: Its name, and the models of its steps; None for no ensemble.
    """

    def __init__(self, folder: Path, into: ImportedRepository) -> None:
        self._folder = folder
        self.file = folder / "config.pbtxt"
        self.ensemble: tuple[str, set[str]] | None = None
        self._into = into
        self._options: dict[str, Any] = {}
        self._model: dict[str, Any] = {"path": str(folder.absolute())}
        self._versions = sorted(
            (each.name for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()),
            key=int,
        )

    def run(self) -> None:
        """Add the model, or say why it is left out."""
        try:
            text = self.file.read_text() if self.file.exists() else ""
            config = parse_fields(text)
            if is_ensemble(config):
                self._map_ensemble(config)
            else:
                self._map(config)
        except (UnicodeDecodeError, MalformedText) as error:
            self._leave(1, f"model left out: {error}")

    def _map(self, config: TextField) -> None:
        mappings: dict[str, Callable[[TextField], None]] = {
            "input": self._tensor,
            "output": self._output,
            "dynamic_batching": self._batching,
            "instance_group": self._instances,
            "response_cache": self._cache,
            "version_policy": self._policy,
        }
        backend = self._backend(config)
        if backend is None:
            return
        self._model["backend"] = backend
        self._select_versions(config)
        size = config.integer("max_batch_size", 0)
        if size > 0:
            self._options["max_batch_size"] = size
        if backend == "torch":
            self._model["signature"] = self._signature(config, size)
        for each in config.fields:
            if each.name not in _IMPLIED:
                mappings.get(each.name, self._unknown)(each)
        if self._options:
            self._model["options"] = self._options
        self._into.models[config.text("name") or self._folder.name] = self._model

    def _map_ensemble(self, config: TextField) -> None:
        for each in (*config.all("input"), *config.all("output")):
            self._tensor(each)
        name = config.text("name") or self._folder.name
        signature = self._signature(config, config.integer("max_batch_size", 0))
        self._into.pipelines[name] = pipeline_of(config, signature, self._leave)
        self.ensemble = name, models_of(config)

    def _leave(self, line: int, text: str) -> None:
        self._into.unmapped.append(Unmapped(str(self.file), line, text))

    def _unknown(self, setting: TextField) -> None:
        self._leave(setting.line, f"{setting.name!r} has no equivalent")

    def _backend(self, config: TextField) -> str | None:
        named = config.all("backend") or config.all("platform")
        if named:
            backend = _BACKENDS.get(named[-1].value)
            if backend is None:
                self._leave(
                    named[-1].line,
                    f"model left out: {named[-1].name} {named[-1].value!r} has no equivalent; let "
                    "a server run it, and name that in 'upstreams'",
                )
            return backend
        for version in reversed(self._versions):
            for name, backend in _FILES.items():
                if (self._folder / version / name).exists():
                    return backend
        self._leave(1, "model left out: no backend and no model file that is known")
        return None

    def _signature(self, config: TextField, batch: int) -> dict[str, Any]:
        """Return inputs and outputs, which TorchScript does not contain; batch axis included."""
        axes = [-1] if batch > 0 else []
        tensors: dict[str, Any] = {"inputs": [], "outputs": []}
        for key, found in tensors.items():
            for each in config.all(key[:-1]):
                datatype = each.text("data_type").removeprefix("TYPE_")
                found.append(
                    {
                        "name": each.text("name"),
                        "datatype": "BYTES" if datatype == "STRING" else datatype,
                        "shape": [*axes, *(axis.number() for axis in each.all("dims"))],
                    }
                )
        return {**tensors, "max_batch_size": batch}

    def _select_versions(self, config: TextField) -> None:
        """Select the versions that Triton serves: by default the newest."""
        policy = (config.all("version_policy") or [TextField("version_policy", 1)])[-1]
        if policy.all("all") or not self._versions:
            return
        specific = policy.all("specific")
        if specific:
            self._options["versions"] = specific[-1].values("versions")
            return
        latest = policy.all("latest")
        count = latest[-1].integer("num_versions", 1) if latest else 1
        self._options["versions"] = self._versions[-max(1, count) :]

    def _policy(self, _setting: TextField) -> None:
        """Do nothing: `_select_versions` reads the policy, also where it is absent."""

    def _tensor(self, setting: TextField, known: frozenset[str] = _OF_TENSORS) -> None:
        """Name the keys of an input or output that change what a client may send or gets."""
        for each in setting.fields:
            if each.name not in known and each.value not in _DEFAULTS:
                name = setting.text("name")
                self._leave(
                    each.line, f"'{setting.name}.{each.name}' of {name!r} has no equivalent"
                )

    def _output(self, setting: TextField) -> None:
        self._tensor(setting, _OF_TENSORS | {_LABELS})
        labels = setting.text(_LABELS)
        if labels:
            self._options.setdefault("labels", {})[setting.text("name")] = labels

    def _batching(self, setting: TextField) -> None:
        if self._options.get("max_batch_size", 0) < 2:  # noqa: PLR2004  # else nothing to merge
            self._leave(setting.line, "'dynamic_batching' without max_batch_size has no effect")
            return
        batching: dict[str, Any] = {"max_batch_size": self._options["max_batch_size"]}
        batching["max_delay"] = f"{setting.integer('max_queue_delay_microseconds', 0)}us"
        sizes = [each.number() for each in setting.all("preferred_batch_size")]
        if sizes:
            batching["preferred_sizes"] = sizes
        self._model["batching"] = batching
        self._rest(setting, {"max_queue_delay_microseconds", "preferred_batch_size"})

    def _instances(self, setting: TextField) -> None:
        count = max(1, setting.integer("count", 1))
        self._options["instances"] = self._options.get("instances", 0) + count
        device = _DEVICES.get(setting.text("kind", "KIND_AUTO"))
        if device is None:
            self._leave(setting.line, f"instance kind {setting.text('kind')!r} has no equivalent")
        elif device != "auto":
            self._options["device"] = device
        self._rest(setting, {"count", "kind", "name"})

    def _cache(self, setting: TextField) -> None:
        if setting.text("enable") == "true":
            self._model["cache"] = {}
        self._rest(setting, {"enable"})

    def _rest(self, setting: TextField, known: set[str]) -> None:
        for each in setting.fields:
            if each.name not in known:
                self._leave(each.line, f"'{setting.name}.{each.name}' has no equivalent")
