"""Builds the gateway from its configuration: listeners, routes, upstreams and models.

Read `run/gateway.py` first: `Gateway` builds every object once, then starts, drains and stops them.
`build` has the services, `listen` the servers, and `check` what is wrong with a configuration.
`run/run.py` runs a gateway in one process, and `workers` in several.
"""

from gateway.api.start_error import StartError
from gateway.app.build.upstreams import Connected, complete_service, connect
from gateway.app.check.check import check
from gateway.app.run.gateway import Gateway
from gateway.app.run.run import run

__all__ = [
    "Connected",
    "Gateway",
    "StartError",
    "check",
    "complete_service",
    "connect",
    "run",
]
