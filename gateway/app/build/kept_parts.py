"""The parts of a service graph, and which of them a reload keeps.

A part is kept if its source is equal. `tests/unit/app/test_kept_parts.py` has changes of a file,
each with the parts that it replaces.

| kind | what it holds | its source |
| --- | --- | --- |
| upstream | connections, states of endpoints, `residency` | its section, and (1) |
| shared model | cache and batch queue of a model there | upstream, entry in `models` |
| target | its service for routes | the upstream; whether it has shared models |
| model | a loaded model of the gateway | backend, path, files, options, signature |
| model loader | which of them are loaded | `residency`, `policies.sequence_idle` |
| model target | cache and batch queue of a model | model, loader, its entry, declarations |
| route | retry budgets, and more of its layers | its section, targets, cut-over, `policies` (2) |
| limit | the queue of a route | `in_flight` and `queue*`, of the route or `policies` |
| affinity | the targets of a route's sequences | `policies.sequence_idle` |

1. Declarations of models that routes may call there, and routes there with `sequence_ids: text`.
2. The keys that its layers read. Top-level keys that layers read count for all kinds with layers.

Targets and upstreams follow other cached models, timeouts and `sequence_idle` without being
replaced; see `ServiceGraph.start`. Each reload replaces the layers of listeners, the pipelines, and
the routes to pipelines. A part that is replaced may keep objects of its layers: see `keep_of`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from gateway.app.build.chain_context import Keep

P = TypeVar("P")

# The parts that the configuration names; the others belong to one of these.
_NAMED: Final = frozenset({"upstream", "model", "route"})


@dataclass(slots=True)
class KeptParts:
    """The parts of a graph, each with all that it was built from.

    Args:
        previous: The parts of the previous graph.
    """

    previous: Mapping[tuple[str, str], tuple[Any, Any]] = field(default_factory=dict)
    current: dict[tuple[str, str], tuple[Any, Any]] = field(default_factory=dict)
    layers: dict[tuple[str, str], "KeptParts"] = field(default_factory=dict)

    @classmethod
    def after(cls, previous: "KeptParts | None") -> "KeptParts":
        """Return the parts of the graph that replaces the one with *previous*."""
        if previous is None:
            return cls()
        return cls(previous.current, layers=dict(previous.layers))

    def keep_of(self, kind: str, name: str) -> Keep:
        """Return what the layers of a part keep their objects by, over reloads of the part.

        The part is built anew; while it is kept itself, so are the objects of its layers.
        """
        found = self.layers.get((kind, name))
        self.layers[kind, name] = own = KeptParts({} if found is None else found.current)
        return lambda layer, source, make: own.get("layer", layer, source, make)

    def get(self, kind: str, name: str, source: Any, build: Callable[[], P]) -> P:
        """Return the part of the previous graph if its *source* is equal, else a new part."""
        found = self.previous.get((kind, name))
        if found is None or found[0] != source:
            found = (source, build())
        self.current[kind, name] = found
        return cast("P", found[1])

    def changes(self) -> dict[str, list[str]]:
        """Return the names of the parts that were added, replaced and removed."""
        return {
            "added": self._names(self.current.keys() - self.previous.keys()),
            "replaced": self._names(
                key for key in self.current.keys() & self.previous.keys() if self.is_new(*key)
            ),
            "removed": self._names(self.previous.keys() - self.current.keys()),
        }

    @staticmethod
    def _names(keys: Iterable[tuple[str, str]]) -> list[str]:
        return sorted(f"{kind} {name}" for kind, name in keys if kind in _NAMED)

    def has(self, kind: str, name: str, part: object) -> bool:
        """Return whether the graph uses *part*."""
        return self.current.get((kind, name), (None, None))[1] is part

    def is_new(self, kind: str, name: str) -> bool:
        """Return whether the part is not one of the previous graph."""
        found = self.previous.get((kind, name))
        return found is None or found[1] is not self.current[kind, name][1]
