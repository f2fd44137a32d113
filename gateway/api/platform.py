"""A platform that starts the gateway in a container, as the folder of its protocol describes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Environment = Mapping[str, str]


def no_models(_environment: Environment, /) -> Path | None:
    """Return no folder: the platform brings no models into the container."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform that starts containers with `serve` alone.

    Attributes:
        name: Its name for people.
        marker: The variable that each of its containers has; "" if none tells them apart.
        facts: The variables that the log shows, by their keys there.
        contract: The variable with the version of its contract; "" for none.
        known_contract: The first number of the version that the protocol implements.
        storage: The variable that names artefacts which the gateway does not fetch; "" for none.
        port: The variable with the port that it calls, a marker as well; "" for none.
        routes: The variables with the paths that it calls, each with the option of the protocol.
        models: Returns the folder of models, where `gateway.yaml` may lie; None for no folder.
    """

    name: str
    marker: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    contract: str = ""
    known_contract: str = ""
    storage: str = ""
    port: str = ""
    routes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    models: Callable[[Environment], Path | None] = no_models

    def missing_models(self, environment: Environment) -> str:
        """Return where artefacts are that the gateway does not fetch; "" for none."""
        return environment.get(self.storage, "") if self.storage else ""
