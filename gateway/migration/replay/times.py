"""Whether the times of two recordings are those of one load, and why not.

A server that gets 64 calls at once takes longer for each of them than one that gets a call now and
then. Times say something of a server only under the load of the recorded ones.
"""

from collections.abc import Mapping
from typing import Final

from gateway.migration.replay.replay import CONCURRENCY, LATE_S, ReplayOptions

REPLAYED: Final = "replayed"
"""What a recording of a replay has the address of the new server under."""
COMMAND: Final = "command"
"""What it has the command of the replay under, without the values of headers."""
STARTED: Final = "started"
"""What it has the time of the replay under, in UTC."""
SERVER: Final = "server"
"""What it has the name and version of the new server under, as that server says."""
_LOAD: Final = "load"
_PROBLEM: Final = "times"
_ALL: Final = 100.0
_MOST_DROPPED: Final = 1.0
_EXPECTED: Final = "expected --pace recorded with all calls"


def load_of(options: ReplayOptions) -> str:
    """Return how a replay sends its calls, in words."""
    limit = options.concurrency
    if options.rate is not None:
        load = f"{options.rate:g} calls a second"
    elif options.speed is None:
        load, limit = "as fast as possible", limit or CONCURRENCY
    else:
        load = "at the recorded pace" if options.speed == 1 else f"at {options.speed:g} x the pace"
    return load if limit is None else f"{load}, at most {limit} in flight"


def replay_problem(
    options: ReplayOptions,
    *,
    lag_s: float,
    recorded_percent: float,
    is_selection: bool,
    left_out: int = 0,
    dropped_percent: float = 0.0,
) -> str:
    """Return why the times of a replay are not those of the recorded load; "" if they are.

    Args:
        options: How it sent the calls.
        lag_s: How late the calls were.
        recorded_percent: Share of the calls of clients that were recorded.
        is_selection: Whether only some of the recorded calls were to be sent.
        left_out: Number of calls that could not be sent.
        dropped_percent: Share of the calls that the recording lost.
    """
    if options.speed != 1 or options.rate is not None or options.concurrency is not None:
        return f"the calls were sent {load_of(options)}; {_EXPECTED}"
    if is_selection:
        return f"only some of the recorded calls were sent; {_EXPECTED}"
    less = ""
    if left_out:
        less = f"{left_out} recorded calls were not sent"
    elif recorded_percent < _ALL:
        less = f"{recorded_percent:g}% of the calls were recorded"
    elif dropped_percent > _MOST_DROPPED:
        less = f"the recording lost {dropped_percent:.3g}% of its calls"
    if less:
        return f"{less}, so the new server had less load"
    if lag_s > LATE_S:
        return f"the calls were sent up to {lag_s * 1e3:.0f} ms late"
    return ""


def description(options: ReplayOptions, problem: str) -> dict[str, str]:
    """Return what a recording of a replay notes of its load."""
    return {_LOAD: load_of(options), _PROBLEM: problem}


def times_problem(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return why the times of two recordings are not comparable; "" if they are.

    Args:
        old: What the first one notes of itself.
        new: Times of the second recording, in the same unit.
    """
    replayed = [each for each in (old, new) if REPLAYED in each]
    if not replayed:
        return ""
    loads = {each.get(_LOAD) for each in replayed}
    if len(replayed) > 1 and len(loads) == 1 and None not in loads:
        return ""
    if len(replayed) > 1:
        return "the two replays sent their calls in different ways"
    return replayed[0].get(_PROBLEM, "it is unknown how the calls were sent")
