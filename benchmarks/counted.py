"""The process that valgrind watches: two runs of each way, on a clock of its own.

    python -m benchmarks.counted FOLDER WAY...

A simulated processor is a hundred times slower, and other load makes it slower still. So the clock
of the gateway advances with each look at it, by 2 us: a request takes some 30 us. The timers of the
loop have the clock of the machine, and wait ten thousand times as long. Else the number of timers
would depend on the load of the machine.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from pathlib import Path

time.monotonic = itertools.count(1e3, 2e-6).__next__  # before the gateway is imported

from benchmarks.counts import CannotCountError, all_ways  # noqa: E402
from benchmarks.stages import RELOAD, START, Bench, run  # noqa: E402
from benchmarks.wires import MemoryLoop  # noqa: E402
from gateway.telemetry.log import logs  # noqa: E402

_WARM_UP = 160
_QUIET = {"telemetry": {"log": {"calls_per_second": 0}}}
"""Lines per second mean nothing on this clock."""
_TIMER_FACTOR = 10_000


def main() -> None:
    """Run the ways, and write the ids of the two processes of each to a file."""
    folder, *names = sys.argv[1:]
    logs.configure("error", "json")
    for way in all_ways():
        if way.name in names:
            MemoryLoop.timer_factor = _TIMER_FACTOR
            pids = run(way, _two_runs, _QUIET)
            (Path(folder) / f"{way.name}.json").write_text(json.dumps(pids))


async def _two_runs(bench: Bench) -> list[str]:
    """Fork a process for each run, and return their ids."""
    send = bench.load()
    if bench.way.moment != START:
        await send(_WARM_UP)
    if bench.way.moment == RELOAD:
        MemoryLoop.timer_factor = 1  # it waits for the calls of the replaced parts
        await bench.reload()
        MemoryLoop.timer_factor = _TIMER_FACTOR
    loop = asyncio.get_running_loop()
    pids = []
    for requests in bench.way.runs:
        pid = os.fork()
        if not pid:
            asyncio.events._set_running_loop(loop)  # noqa: SLF001  # a fork forgets it
            if requests:
                await send(requests)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        _pid, status = os.waitpid(pid, 0)  # noqa: ASYNC222  # nothing else runs
        if status:
            raise CannotCountError(f"a run ended with wait status {status}")
    MemoryLoop.timer_factor = 1  # to stop, the gateway waits for timers
    return [str(pid) for pid in pids]


if __name__ == "__main__":
    main()
