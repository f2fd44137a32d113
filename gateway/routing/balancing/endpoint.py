"""Endpoint: what is known of one address of an upstream. `endpoints.py` has all of them."""

import math
import time
from collections.abc import Awaitable, Callable

from gateway.ir.calls import Call, ServerReadyRequest
from gateway.ir.metadata import ServerMetadata
from gateway.routing.balancing.endpoint_share import EndpointShare
from gateway.routing.balancing.load_balancing import PeakEwma
from gateway.routing.balancing.outlier_detection import EndpointHealth
from gateway.service import Service, bound_call


class Endpoint:
    """One address of an upstream.

    Attributes:
        name: Its address, for logs, metrics and errors.
        service: Sends calls to it.
        is_ready: Result of its last probe; True while nothing probes it.
        pending: Calls in flight; counted where there is more than one endpoint.
        health: What its calls tell.
        share: Its share of the calls, lowered while its server refuses them.
        latency: Of its calls, where the load balancing policy measures it.
        last_turn: Number of the call that was sent to it last.
        clock: That of the calls.
        available_since: Time since which it is available; its share of the calls grows from then.
        probe: Probes it once; None while nothing probes it.
        probe_call: The question of a probe.
        server: Metadata of its server; None while they are unknown.
        reason: Why its last probe failed; "" if it succeeded.
        changed_at: When the result of its probes changed, on the clock of the calls.
        is_drained: Whether it gets no new calls, because an operator says so or it is leaving.
        is_leaving: Whether its address is no longer one of the upstream.
        closed_to: Models of which it gets no new calls.
        rank: It gets calls only while no endpoint of a lower rank is available.
        weight: Its share of the calls, relative to the others of its rank.
        next_turn: For weighted round robin.
    """

    def __init__(self, name: str, service: Service) -> None:
        self.name = name
        self.service = bound_call(service)
        self.is_ready = True
        self.pending = self.last_turn = 0
        self.health = EndpointHealth()
        self.share = EndpointShare()
        self.latency = PeakEwma()
        self.clock: Callable[[], float] = time.monotonic
        self.available_since = -math.inf
        self.probe: Callable[[], Awaitable[bool]] | None = None
        self.probe_call: type[Call[bool]] = ServerReadyRequest
        self.server: ServerMetadata | None = None
        self.reason = ""
        self.changed_at = self.clock()
        self.is_drained = self.is_leaving = False
        self.closed_to: frozenset[str] = frozenset()
        self.rank = 0
        self.weight = 1.0
        self.next_turn = 0.0

    def is_available(self, now: float) -> bool:
        """Return whether the endpoint is ready and may get a call."""
        return self.is_ready and not self.is_drained and self.health.is_available(now)

    def probed(self, ready: bool, reason: str = "") -> None:
        """Note the result of a probe, and why it failed."""
        if ready != self.is_ready:
            self.changed_at = self.clock()
        self.reason = reason
        if ready and not self.is_ready:
            self.available_since = self.clock()
        self.is_ready = ready
        if ready:
            self.health.allow_trial(self.clock())
