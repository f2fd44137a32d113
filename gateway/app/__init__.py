"""Composition root: Config -> listeners, routes, upstreams; start, drain, stop.

The only place that knows everything. Objects are built here once, from a configuration that is not
read again.
"""

from gateway.app.check import check
from gateway.app.errors import StartError
from gateway.app.gateway import Gateway
from gateway.app.layers import describe_layers
from gateway.app.route_rules import Explanation, explain_call
from gateway.app.run import run
from gateway.app.upstreams import Connected, connect

__all__ = [
    "Connected",
    "Explanation",
    "Gateway",
    "StartError",
    "check",
    "connect",
    "describe_layers",
    "explain_call",
    "run",
]
