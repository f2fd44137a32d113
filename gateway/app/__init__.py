"""Builds the gateway from its configuration: listeners, routes, upstreams and models.

Read `gateway.py` first: `Gateway` builds every object once, then starts, drains and stops them.
`run.py` runs it in one process, and `workers` in several.
"""

from gateway.app.check import check
from gateway.app.errors import StartError
from gateway.app.gateway import Gateway
from gateway.app.route_rules import Explanation, explain_call
from gateway.app.run import run
from gateway.app.upstreams import Connected, complete_service, connect

__all__ = [
    "Connected",
    "Explanation",
    "Gateway",
    "StartError",
    "check",
    "complete_service",
    "connect",
    "explain_call",
    "run",
]
