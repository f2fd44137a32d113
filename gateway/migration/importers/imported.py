"""What an import yields: a configuration, and the settings without an equivalent."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A setting without an equivalent.

    Attributes:
        file: The file, or "command line".
        line: Its line; on a command line the number of the word.
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(slots=True)
class Imported:
    """The result of an import.

    Attributes:
        config: The configuration, as plain values of its YAML.
        unmapped: What has no equivalent.
    """

    config: dict[str, Any] = field(default_factory=dict)
    unmapped: list[Unmapped] = field(default_factory=list)

    @property
    def models(self) -> int:
        """Number of models, and of servers that keep running behind the gateway."""
        return len(self.config.get("models", ())) or len(self.config.get("upstreams", ()))


def before_server(
    ports: tuple[int, int], name: str, upstream: dict[str, Any], models: list[str]
) -> dict[str, Any]:
    """Return a gateway on the ports of a server of this host, which moves to others.

    Args:
        ports: The port of HTTP, and that of gRPC.
        name: Name of the upstream that is the server.
        upstream: Its settings.
        models: Names of its models.
    """
    http, grpc = ports
    return {
        "version": "1",
        "listeners": [{"name": "main", "http": f"127.0.0.1:{http}", "grpc": f"127.0.0.1:{grpc}"}],
        "upstreams": {name: upstream},
        "routes": [{"match": {"model": models}, "targets": [{"upstream": name}]}],
    }


def shifted_port(port: int) -> int:
    """Return the port for an old server whose own port the gateway takes."""
    return port + 10000 if port < 55536 else port - 10000  # noqa: PLR2004  # ports end at 65535
