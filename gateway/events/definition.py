"""SinkDefinition: a sink of events, as one process tells it to another."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from gateway.config.load import LoadedConfig
from gateway.events.settings import EVENTS, EventSinkConfig


@dataclass(frozen=True)
class SinkDefinition:
    """A sink as the shadow process opens it.

    Attributes:
        name: The name of the sink, for books and logs.
        config: Its keys.
        directory: Paths of files are relative to it.
        header_texts: Headers of requests whose values come from files, as written, by name.
    """

    name: str
    config: EventSinkConfig
    directory: Path
    header_texts: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        """Equal for equal definitions, in all processes."""
        text = f"{self.name}\n{self.directory}\n{self.config.model_dump_json()}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def event_sinks(loaded: LoadedConfig) -> list[SinkDefinition]:
    """Return the sinks of events of a configuration."""
    texts: dict[str, dict[str, str]] = {}
    for path, text in loaded.references():
        match path:
            case ("events", str(name), "request_headers", str(header)) if "${file:" in text:
                texts.setdefault(name, {})[header] = text
    return [
        SinkDefinition(name, config, loaded.directory, texts.get(name, {}))
        for name, config in EVENTS.of(loaded.config).items()
    ]
