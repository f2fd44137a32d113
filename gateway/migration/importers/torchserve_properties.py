"""Imports the `config.properties` of TorchServe, and the manifests of its model archives.

Models stay at their server, behind the gateway, because their handlers are Python.

Source: TorchServe 0.12, "Advanced configuration" and "Torch Model archiver".
"""

import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from gateway.migration.importers.imported import Imported, Unmapped, shifted_port

_HTTP: Final = "http://127.0.0.1:8080"
_DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_GRPC: Final = "7070"
_HOST: Final = "127.0.0.1"
_UPSTREAM: Final = "torchserve"
_GRPC_UPSTREAM: Final = "torchserve_grpc"
_MANIFEST: Final = "MAR-INF/MANIFEST.json"
_MOST_BYTES: Final = 1 << 20
_ARCHIVE: Final = ".mar"
_ENVELOPE: Final = "service_envelope"
_DEFAULT_SIZE: Final = 6_553_500
_VERSION: Final = re.compile(r"(0|[1-9][0-9]{0,17})(\.0)?")
_PROPERTY: Final = re.compile(r"((?:[^\s=:\\]|\\.)+)\s*[=:\s]?\s*(.*)", re.DOTALL)
# Handlers of TorchServe itself, and what their bodies are.
_HANDLERS: Final[Mapping[str, str]] = {
    "image_classifier": "bytes",
    "image_segmenter": "bytes",
    "object_detector": "bytes",
    "text_classifier": "text",
}
_REASONS: Final[Mapping[str, str]] = {
    "keystore": "TLS: set tls of the listener",
    "keystore_pass": "TLS: set tls of the listener",
    "keystore_type": "TLS: set tls of the listener",
    "certificate_file": "TLS: set tls of the listener",
    "private_key_file": "TLS: set tls of the listener",
    "cors_allowed_origin": "set cors of the listener",
    "cors_allowed_methods": "set cors of the listener",
    "cors_allowed_headers": "set cors of the listener",
    "enable_model_api": "the management is read-only in the gateway",
    "management_address": "lists and descriptions of models are on the listener",
    "grpc_management_port": "lists and descriptions of models are on the listener",
    "metrics_address": "the gateway has metrics of its own: set admin.metrics",
}


class _Property(NamedTuple):
    """A setting, and the line where it begins."""

    value: str
    line: int


class _Archive(NamedTuple):
    """A model archive: its manifest, and where it stands."""

    file: str
    model: Mapping[str, Any]


def import_torchserve(path: Path) -> Imported:
    """Import `config.properties`, one archive, or a folder of archives.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file has another form.
    """
    if path.suffix == _ARCHIVE:
        return _Import({}, str(path), [_read_archive(path)]).run()
    if path.is_dir():
        return _Import({}, str(path), _archives_of(path)).run()
    try:
        settings = _read_properties(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8") from error
    try:
        archives, lost = _loaded(settings, path), []
    except FileNotFoundError as error:
        text = f"{error.filename} is not here, so any model takes the route to the server"
        archives, lost = [], [Unmapped(str(path), settings["load_models"].line, text)]
    return _Import(settings, str(path), archives, lost).run()


def _read_properties(text: str) -> dict[str, _Property]:
    """Return the settings of a file of Java properties; of a repeated one the last counts."""
    found: dict[str, _Property] = {}
    whole, begin = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.lstrip()
        if not whole:
            if not stripped or stripped[0] in "#!":
                continue
            begin = number
        is_continued = (len(stripped) - len(stripped.rstrip("\\"))) % 2 == 1
        whole += stripped[:-1] if is_continued else stripped
        if is_continued:
            continue
        match = _PROPERTY.fullmatch(whole.rstrip())
        if match is not None:
            found[match[1]] = _Property(_unescaped(match[2]), begin)
        whole = ""
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _loaded(settings: Mapping[str, _Property], path: Path) -> list[_Archive]:
    """Return the archives that the server loads when it starts."""
    store = settings.get("model_store")
    wanted = settings.get("load_models")
    if store is None or wanted is None:
        return []
    folder = path.parent / store.value
    if wanted.value.strip().lower() == "all":
        return _archives_of(folder)
    found = []
    for entry in [each.strip() for each in wanted.value.split(",") if each.strip()]:
        name, equals, file = entry.partition("=")
        archive = _read_archive(folder / (file if equals else name))
        model = {**archive.model, "modelName": name} if equals else archive.model
        found.append(_Archive(archive.file, model))
    return found


def _archives_of(folder: Path) -> list[_Archive]:
    files = [each for each in sorted(folder.iterdir()) if _is_archive(each)]
    return [_read_archive(each) for each in files]


def _is_archive(path: Path) -> bool:
    return path.suffix == _ARCHIVE or (path / _MANIFEST).is_file()


def _read_archive(path: Path) -> _Archive:
    """Return the manifest of an archive, which may be a folder.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no archive, or has no manifest.
    """
    if path.is_dir():
        text = (path / _MANIFEST).read_bytes()[: _MOST_BYTES + 1]
    else:
        try:
            with zipfile.ZipFile(path) as archive, archive.open(_MANIFEST) as file:
                text = file.read(_MOST_BYTES + 1)
        except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"{path} has no {_MANIFEST}: {error}") from error
    if len(text) > _MOST_BYTES:
        raise ValueError(f"{path}: the manifest has more than {_MOST_BYTES} bytes")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: the manifest is not JSON: {error}") from error
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("modelName"), str):
        message = f"{path}: the manifest has no model.modelName"
        raise ValueError(message)  # noqa: TRY004  # the file is wrong, not an argument
    return _Archive(str(path), model)


class _Import:
    """The import of one server."""

    def __init__(
        self,
        settings: Mapping[str, _Property],
        file: str,
        archives: list[_Archive],
        lost: Sequence[Unmapped] = (),
    ) -> None:
        self._settings = settings
        self._file = file
        self._archives = archives
        self._lost = lost
        self._found = Imported(unmapped=[*lost])
        self._models: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, list[str]] = {}

    def run(self) -> Imported:
        for archive in self._archives:
            self._archive(archive)
        self._configured()
        for name, versions in self._versions.items():
            self._map_versions(name, versions)
        self._leave_rest()
        self._found.config = self._configuration()
        return self._found

    def _archive(self, archive: _Archive) -> None:
        name = str(archive.model["modelName"])
        declared = self._declared(name)
        self._add_version(name, archive.model.get("modelVersion"))
        handler = str(archive.model.get("handler", "")).partition(":")[0]
        form = _HANDLERS.get(handler)
        if form is not None and "envelope" not in declared:
            declared["request"] = form
        self._found.unmapped.append(
            Unmapped(
                archive.file,
                1,
                f"model {name!r}: an archive does not tell inputs and outputs; set "
                f"models.{name}.signature for clients of other protocols, with the batch axis, and "
                f"protocols.{_UPSTREAM}.batch: false if a request is no item of a batch",
            )
        )

    def _configured(self) -> None:
        """Add the models of the settings `models` and `model_snapshot`, which are JSON."""
        for key in ("models", "model_snapshot"):
            setting = self._settings.get(key)
            if setting is None:
                continue
            try:
                document = json.loads(setting.value)
            except ValueError as error:
                text = f"{self._file}:{setting.line}: {key} is not JSON: {error}"
                raise ValueError(text) from error
            if key == "model_snapshot" and isinstance(document, dict):
                document = document.get("models", {})
            if not isinstance(document, dict):
                text = f"{self._file}:{setting.line}: {key} has no models: expected an object"
                raise ValueError(text)  # noqa: TRY004  # the file is wrong, not an argument
            self._add_models(document)

    def _add_models(self, models: Mapping[str, Any]) -> None:
        for name, versions in models.items():
            declared = self._declared(name)
            for version, own in versions.items() if isinstance(versions, dict) else ():
                self._add_version(name, version)
                size = own.get("batchSize") if isinstance(own, dict) else None
                if isinstance(size, int) and size > 1 and "envelope" not in declared:
                    declared["batch"] = True

    def _declared(self, name: str) -> dict[str, Any]:
        model = self._models.setdefault(name, {"protocols": {_UPSTREAM: {}}})
        declared: dict[str, Any] = model["protocols"][_UPSTREAM]
        envelope = self._text(_ENVELOPE)
        if envelope == "json":
            declared["envelope"] = "json"
        return declared

    def _add_version(self, name: str, version: object) -> None:
        found = self._versions.setdefault(name, [])
        if isinstance(version, str) and version and version not in found:
            found.append(version)

    def _map_versions(self, name: str, versions: list[str]) -> None:
        """Give each version that is no number one, by which other protocols name it."""
        numbers = {match[1] for each in versions if (match := _VERSION.fullmatch(each))}
        table = {}
        for version in versions:
            if _VERSION.fullmatch(version) is None:
                own = next(str(at) for at in range(1, len(versions) + 1) if str(at) not in numbers)
                numbers.add(own)
                table[version] = own
        if table:
            self._models[name]["protocols"][_UPSTREAM]["version_map"] = table

    def _leave_rest(self) -> None:
        for key, setting in self._settings.items():
            reason = _REASONS.get(key)
            if reason is not None:
                self._leave(setting, f"{key!r}: {reason}")
        envelope = self._settings.get(_ENVELOPE)
        if envelope is not None and envelope.value not in ("json", "body"):
            text = f"{_ENVELOPE!r} is {envelope.value!r}: its protocol has a listener of its own"
            self._leave(envelope, text)
        token = self._settings.get("disable_token_authorization")
        if token is None or token.value.strip().lower() != "true":
            self._leave(
                token or _Property("", 1),
                "the server asks for a token: set headers.authorization of both upstreams to "
                "'Bearer KEY' with its inference key",
            )

    def _leave(self, setting: _Property, text: str) -> None:
        self._found.unmapped.append(Unmapped(self._file, setting.line, text))

    def _configuration(self) -> dict[str, Any]:
        """Return a gateway on the ports of the server, which moves to others."""
        address = self._settings.get("inference_address", _Property(_HTTP, 1))
        url = urlsplit(address.value.strip() or _HTTP)
        try:
            own_port = url.port
        except ValueError as error:
            raise ValueError(f"{self._file}: inference_address: {error}") from error
        if url.scheme not in _DEFAULT_PORTS or not url.hostname:
            self._leave(address, f"'inference_address' {address.value!r} is left out for {_HTTP}")
            url = urlsplit(_HTTP)
            own_port = url.port
        elif url.scheme == "https":
            self._leave(address, f"'inference_address': set tls.ca of upstreams.{_UPSTREAM}")
        port = own_port or _DEFAULT_PORTS[url.scheme]
        host = url.hostname or _HOST
        grpc = self._text("grpc_inference_port") or _GRPC
        if not grpc.isdecimal():
            raise ValueError(f"{self._file}: grpc_inference_port is {grpc!r}: expected a number")
        size = self._text("max_request_size")
        limit = int(size) if size.isdecimal() else _DEFAULT_SIZE
        names = sorted(self._models)
        target = {"targets": [{"upstream": _UPSTREAM}]}
        match = {"match": {"model": names}} if names and not self._lost else {}
        # Bodies of unknown form pass as they came, so each carrier has its own.
        own = {"protocol": "torchserve.grpc", **match.get("match", {})}
        grpc_url = f"torchserve+grpc://{_HOST}:{shifted_port(int(grpc))}"
        config: dict[str, Any] = {
            "version": "1",
            "listeners": [
                {
                    "name": "main",
                    "http": f"{host}:{port}",
                    "grpc": f"{self._text('grpc_inference_address') or _HOST}:{grpc}",
                    "limits": {"message_bytes": limit},
                }
            ],
            "upstreams": {
                _UPSTREAM: {"url": f"torchserve+{url.scheme}://{_HOST}:{shifted_port(port)}"},
                _GRPC_UPSTREAM: {"url": grpc_url},
            },
            "routes": [
                {"match": own, "targets": [{"upstream": _GRPC_UPSTREAM}]},
                {**match, **target},
            ],
        }
        timeout = self._text("default_response_timeout")
        if timeout.isdecimal() and int(timeout):
            config["policies"] = {"timeout": f"{timeout}s"}
        if self._models:
            config["models"] = self._models
        return config

    def _text(self, key: str) -> str:
        found = self._settings.get(key)
        return "" if found is None else found.value.strip()
