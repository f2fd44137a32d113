"""The process of one worker: a gateway that takes its configuration from its supervisor.

`python -m gateway.app.workers.worker NUMBER/COUNT DESCRIPTOR`, started by `child.launch` and nobody
else. It ends at SIGTERM, after what is in flight; and when its supervisor has gone, then without
waiting for load balancers, since nobody starts it again or tells how it is.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import structlog

from gateway.app.errors import StartError
from gateway.app.gateway import Gateway
from gateway.app.process import freeze_startup_objects
from gateway.app.run import loop_factory, prepare
from gateway.app.workers.channel import Orders, WorkerChannel, open_channel, read_orders
from gateway.config.load import ConfigError
from gateway.telemetry import log as logs
from gateway.telemetry.aggregation import snapshot

log = structlog.get_logger(__name__)

_FAILED = 1


def main() -> int:
    """Serve until the supervisor says otherwise; return the exit status."""
    line = socket.socket(fileno=int(sys.argv[2]))
    try:
        orders = read_orders(line)
    except EOFError:
        return _FAILED
    settings = orders.loaded.config.telemetry.log
    logs.configure(settings.level, settings.format, worker=orders.seat.number)
    logs.set_level(level_at_start(settings.level, first=orders.first))
    prepare(orders.seat)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(orders, line))


def level_at_start(level: str, *, first: bool) -> str:
    """Return from which level a worker logs until it listens, where it is to be *level* then.

    What each of them would say of the configuration is said by the first, once.
    """
    if level in {"debug", "error"}:
        return level
    return "warning" if first else "error"


async def _run(orders: Orders, line: socket.socket) -> int:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    channel = await open_channel(line)
    try:
        sockets = {where: socket.socket(fileno=number) for where, number in orders.sockets.items()}
        gateway = Gateway(orders.loaded, orders.seat, sockets)
    except (ConfigError, StartError) as error:
        return await _refused(channel, error)
    answering = asyncio.create_task(_answer(channel, gateway))
    starting = asyncio.create_task(gateway.start())
    await asyncio.wait({starting, answering}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # the supervisor has gone
        return _FAILED
    try:
        starting.result()
    except StartError as error:
        return await _refused(channel, error)
    freeze_startup_objects()
    logs.set_level(orders.loaded.config.telemetry.log.level)
    channel.send({"started": gateway.addresses})
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({waiting, answering}, return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        await gateway.stop()
    else:
        log.error("the supervisor has gone")
        await gateway.stop(pre_stop_s=0)
        answering.result()  # or what made it impossible to answer
    channel.send(_figures(gateway))
    await channel.close()
    return 0


async def _refused(channel: WorkerChannel, error: Exception) -> int:
    channel.send({"failed": str(error)})
    await channel.close()
    return _FAILED


async def _answer(channel: WorkerChannel, gateway: Gateway) -> None:
    """Answer the supervisor's questions until it has gone."""
    while (message := await channel.receive()) is not None:
        if message["ask"] == "ready":
            answer: dict[str, object] = {"ready": await gateway.ready()}
        else:
            answer = _figures(gateway)
        channel.send({**answer, "number": message["number"]})


def _figures(gateway: Gateway) -> dict[str, object]:
    return {"figures": snapshot(gateway.metrics.registry)}


if __name__ == "__main__":
    sys.exit(main())
