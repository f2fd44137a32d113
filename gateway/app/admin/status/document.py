"""The parts of the status document.

It shows what the process knows without asking anybody: routes, upstreams with their endpoints,
limits in use, and the latest warnings. It holds no payloads and no secrets.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.app.build.endpoint_discovery import BuiltEndpoint
from gateway.app.build.route_rules import target_name
from gateway.app.build.routes import BuiltRoute
from gateway.app.build.upstreams import BuiltUpstream
from gateway.routing.balancing.endpoint import Endpoint
from gateway.telemetry import names
from gateway.telemetry.gauges import LabelledGauges
from gateway.telemetry.upstream_metrics import AttemptMetrics

Document = dict[str, Any]

_SHOWN: Final = frozenset(
    each.name for each in (names.ROUTE_IN_FLIGHT, names.ROUTE_QUEUED, names.CONNECTIONS)
)


def route_entries(
    routes: Iterable[BuiltRoute], upstreams: Mapping[str, BuiltUpstream], required: Collection[str]
) -> Iterator[Document]:
    """Yield the entry of each route: its readiness, and why it is not ready.

    Args:
        routes: In order of precedence.
        upstreams: By name.
        required: The routes that must be ready for the gateway to be ready.
    """
    for built in routes:
        names = _upstreams_of(built, upstreams)
        ready = built.ready()
        yield {
            "name": built.ruled.name,
            "ready": ready,
            "required": built.ruled.name in required,
            "weights": _weights(built),
            "targets": names or [f"model {built.ruled.model}" if built.ruled.model else "local"],
            "reason": "" if ready else _reason(names, upstreams),
        }


def _weights(built: BuiltRoute) -> Document:
    """Return the weights in force of a route's targets; empty without weights."""
    config = built.ruled.config
    if config is None:
        return {}
    return {target_name(target): target.weight for target in config.targets}


def _upstreams_of(built: BuiltRoute, upstreams: Mapping[str, BuiltUpstream]) -> list[str]:
    config = built.ruled.config
    if config is None:
        return [] if built.ruled.model else list(upstreams)
    return [target.upstream for target in config.targets if target.upstream is not None]


def _reason(names: Sequence[str], upstreams: Mapping[str, BuiltUpstream]) -> str:
    """Return which endpoints of the upstreams *names* are missing, and why."""
    reasons = [
        f"upstream {name}: {reason}"
        for name in dict.fromkeys(names)
        for reason in _missing(upstreams[name].endpoints.endpoints)
    ]
    return "; ".join(reasons) or "its model is not loaded"


def _missing(endpoints: Sequence[Endpoint]) -> Iterator[str]:
    """Yield why each of the endpoints that are not available gets no calls."""
    if not endpoints:
        yield "no address: its name could not be looked up"
    for endpoint in endpoints:
        now = endpoint.clock()
        if not endpoint.is_available(now):
            yield f"endpoint {endpoint.name}: {_reason_of(endpoint, now)}"


def _reason_of(endpoint: Endpoint, now: float) -> str:
    """Return why an endpoint gets no calls; "" if it does."""
    if endpoint.is_drained:
        return "its name no longer has this address" if endpoint.is_leaving else "drained"
    if endpoint.reason or endpoint.is_available(now):
        is_refusing = not endpoint.share.admits(now) or endpoint.share.is_set_aside
        return endpoint.reason or ("its server refuses calls" if is_refusing else "")
    is_ejected = endpoint.health.ejected_until is not None
    return "ejected" if is_ejected else "it could not be reached a moment ago"


def upstream_entries(
    upstreams: Mapping[str, BuiltUpstream], attempts: AttemptMetrics
) -> Iterator[Document]:
    """Yield the entry of each upstream, with its endpoints."""
    for name, built in upstreams.items():
        yield {
            "name": name,
            "ready": built.ready(),
            "endpoints": [
                _endpoint_entry(each, attempts.of(name, each.endpoint.name).mean_s)
                for each in built.members
            ],
        }


def _endpoint_entry(built: BuiltEndpoint, mean_s: float) -> Document:
    endpoint, identity = built.endpoint, built.identity
    now = endpoint.clock()
    ejected_until = endpoint.health.ejected_until
    server = identity.server
    entry: Document = {
        "address": endpoint.name,
        "ready": endpoint.is_ready,
        "available": endpoint.is_available(now),
        "since_s": round(max(0.0, now - endpoint.changed_at), 1),
        "reason": _reason_of(endpoint, now),
        "share": round(endpoint.share.value, 2),
        "in_flight": endpoint.pending,
        "withheld": identity.withheld_calls,
        "mean_latency_ms": round(mean_s * 1e3, 3),
        "ejected_for_s": 0.0 if ejected_until is None else round(max(0.0, ejected_until - now), 1),
    }
    if server is not None:
        entry["server"] = f"{server.name} {server.version}".strip()
        entry["weaknesses"] = identity.weaknesses()
    if built.hand_over is not None:
        entry["hand_over"] = built.hand_over.reason or "on"
    return entry


def gauge_entries(gauges: LabelledGauges) -> Document:
    """Return the limits in use, by metric and label."""
    found: Document = {}
    for metric in gauges.collect():
        if metric.name in _SHOWN:
            key = metric.name.removeprefix("gateway_")
            found[key] = {
                ",".join(sample.labels.values()): sample.value for sample in metric.samples
            }
    return found
