"""Imports the command line of a GraphPipe server as a configuration.

Flags and variables are those of graphpipe-tf, graphpipe-onnx and graphpipe-batcher. An ONNX model
runs in the gateway. Other models stay at their server, behind the gateway.

Source: oracle/graphpipe-go, cmd/graphpipe-tf, cmd/graphpipe-onnx and cmd/graphpipe-batcher.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final

from gateway.migration.importers.imported import Imported, Unmapped, shifted_port

_SOURCE: Final = "command line"
_SWITCHES: Final = frozenset({"cache", "disable-cuda", "verbose", "version"})
_SHORT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "d": "cache-dir",
        "l": "listen",
        "m": "model",
        "i": "inputs",
        "o": "outputs",
        "c": "cache",
        "v": "verbose",
        "V": "version",
    }
)
_VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "GP_MODEL": "model",
        "GP_INPUTS": "inputs",
        "GP_OUTPUTS": "outputs",
        "GP_CACHE": "cache",
        "GP_VALUE_INPUTS": "value_inputs",
        "GP_INIT_NET": "init_net",
        "GP_PREDICT_NET": "predict_net",
    }
)
_LISTEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "graphpipe-tf": "127.0.0.1:9000",
        "graphpipe-onnx": "127.0.0.1:9000",
        "graphpipe-caffe2": "127.0.0.1:9000",
        "graphpipe-batcher": "127.0.0.1:10000",
    }
)
_FLAGS: Final = frozenset(
    {*_SHORT.values(), *_VARIABLES.values(), "dir", "engine_count", "profile", "disable-cuda"}
    | {"target-url", "batch-size", "timeout", "workers"}
)
_IMPLIED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cache-dir": "the cache of the gateway is in memory",
        "dir": "the cache of the gateway is in memory",
        "profile": "'--profile' has no equivalent",
        "version": "'--version' has no equivalent",
    }
)


@dataclass(frozen=True, slots=True)
class _Flag:
    value: str
    word: int


def import_graphpipe(words: Sequence[str]) -> Imported:
    """Import a command line, which may begin with variables: `GP_CACHE=1 graphpipe-tf ...`.

    Raises:
        ValueError: It is not the command line of a GraphPipe server.
    """
    program, flags = _parse(words)
    return _CommandImport(program, flags).run()


def _parse(words: Sequence[str]) -> tuple[str, dict[str, _Flag]]:
    flags: dict[str, _Flag] = {}
    place = 0
    while place < len(words) and "=" in words[place] and not words[place].startswith("-"):
        name, _, value = words[place].partition("=")
        if name in _VARIABLES:
            flags[_VARIABLES[name]] = _Flag(value, place + 1)
        place += 1
    program = PurePath(words[place]).name if place < len(words) else ""
    if program not in _LISTEN:
        raise ValueError(
            f"the program is {program!r}; expected one of {', '.join(_LISTEN)}, such as "
            "`-- graphpipe-onnx --model m.onnx`"
        )
    place += 1
    while place < len(words):
        name, value, used = _flag(words, place)
        flags[name] = _Flag(value, place + 1)
        place += used
    return program, flags


def _flag(words: Sequence[str], place: int) -> tuple[str, str, int]:
    """Return the name and the value of the flag at *place*, and how many words it has."""
    word = words[place]
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
    else:
        name = _SHORT.get(word[1:2], word[1:]) if word.startswith("-") else ""
        value = word[2:].removeprefix("=")
        equals = value
    if name not in _FLAGS:
        raise ValueError(f"word {place + 1} is {word!r}; expected a flag of a GraphPipe server")
    if equals or name in _SWITCHES:
        return name, value or "true", 1
    if place + 1 == len(words):
        raise ValueError(f"{word} has no value")
    return name, words[place + 1], 2


class _CommandImport:
    """The import of one command line."""

    def __init__(self, program: str, flags: Mapping[str, _Flag]) -> None:
        self._program = program
        self._flags = flags
        self._found = Imported()
        model = self._text("model") or self._text("predict_net")
        self._name = PurePath(model.rpartition("://")[2]).stem or "model"

    def run(self) -> Imported:
        listen = self._text("listen") or _LISTEN[self._program]
        host, _, port = listen.rpartition(":")
        if not port.isdecimal():
            raise ValueError(f"--listen is {listen!r}; expected HOST:PORT")
        self._found.config = {
            "version": "1",
            "listeners": [
                {
                    "name": "graphpipe",
                    "http": f"{host or '0.0.0.0'}:{port}",  # noqa: S104  # as the server itself
                    "protocols": ["graphpipe"],
                    "default_model": self._name,
                }
            ],
        }
        model = self._model(int(port))
        if self._is_on("cache"):
            model["cache"] = {}
        if model:
            self._found.config["models"] = {self._name: model}
        if self._is_on("verbose"):
            self._found.config["telemetry"] = {"log": {"level": "debug"}}
        for name, text in _IMPLIED.items():
            if name in self._flags:
                self._leave(name, text)
        return self._found

    def _model(self, port: int) -> dict[str, Any]:
        """Return the entry of the model, and add the upstream where a server stays."""
        if self._program == "graphpipe-batcher":
            return self._batcher()
        path = self._text("model")
        if self._program != "graphpipe-tf" and path and "://" not in path:
            return self._onnx(path)
        if "://" in path and self._program != "graphpipe-tf":
            self._leave("model", f"model {path!r} is not downloaded; download it for 'models'")
        self._upstream(f"graphpipe+http://127.0.0.1:{shifted_port(port)}/")
        setting = "model" if path else "predict_net"
        self._leave(
            setting,
            f"'--{setting}': no backend runs it; start its server with "
            f"--listen 127.0.0.1:{shifted_port(port)}, behind the gateway",
        )
        return {}

    def _onnx(self, path: str) -> dict[str, Any]:
        options: dict[str, Any] = {}
        engines = self._number("engine_count")
        if engines is not None:
            options["instances"] = engines
        if self._is_on("disable-cuda"):
            options["device"] = "cpu"
        model: dict[str, Any] = {"backend": "onnx", "path": str(Path(path).absolute())}
        # The model file names its inputs, which --value_inputs repeats.
        return model | ({"options": options} if options else {})

    def _batcher(self) -> dict[str, Any]:
        target = self._text("target-url")
        scheme, found, rest = target.partition("://")
        if not found or scheme not in {"http", "https"}:
            raise ValueError(f"--target-url is {target!r}; expected http://HOST:PORT")
        self._upstream(f"graphpipe+http://{rest if '/' in rest else rest + '/'}")
        if scheme == "https":
            self._found.config["upstreams"][self._name]["tls"] = {}
        batching: dict[str, Any] = {
            "max_batch_size": self._number("batch-size") or 10,
            "max_delay": f"{self._number('timeout') or 250}ms",
            "in_flight": self._number("workers") or 1,
        }
        return {"batching": batching}

    def _upstream(self, url: str) -> None:
        options = {
            key: [name if ":" in name or not self._adds_index else f"{name}:0" for name in names]
            for key in ("inputs", "outputs")
            if (names := [each.strip() for each in self._text(key).split(",") if each.strip()])
        }
        upstream = {"url": url} | ({"options": options} if options else {})
        self._found.config["upstreams"] = {self._name: upstream}

    @property
    def _adds_index(self) -> bool:
        """Whether the server appends ":0" to names of tensors."""
        return self._program == "graphpipe-tf"

    def _text(self, name: str) -> str:
        found = self._flags.get(name)
        return "" if found is None else found.value

    def _number(self, name: str) -> int | None:
        text = self._text(name)
        if text and not text.isdecimal():
            raise ValueError(f"--{name} is {text!r}; expected a number")
        return int(text) if text else None

    def _is_on(self, name: str) -> bool:
        return self._text(name).lower() in {"1", "true", "t"}

    def _leave(self, name: str, text: str) -> None:
        self._found.unmapped.append(Unmapped(_SOURCE, self._flags[name].word, text))
