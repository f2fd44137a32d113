"""Calls of the demo's digits that a gateway records, and what a replay of them finds."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import yaml

from gateway.app import complete_service, connect
from gateway.cli.demo.config import demo_config
from gateway.migration.captures.capture import Capture
from gateway.migration.compare.replies import Comparison
from gateway.migration.compare.rules import EXACT, OutputRules
from gateway.migration.compare.tensors import Outcome
from gateway.migration.replay.replay import Replay, ReplayOptions, ReplayOutcome
from gateway.settings.units import parse_url

ROWS: Final = 20
RULES: Final = OutputRules(outputs={"label": EXACT, "probabilities": EXACT})


def digits() -> npt.NDArray[np.float32]:
    """Return the scans of scikit-learn's digits, without its import, which takes a second.

    Each process of a run collects all files that need them.
    """
    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows: npt.NDArray[np.float32] = np.loadtxt(path, np.float32, delimiter=",")
    return rows[:, :-1]


SCANS: Final = digits()[:ROWS]


def demo_text(directory: Path | None = None, *listeners: dict[str, Any], **more: str) -> str:
    """Return the demo's models behind a listener of all protocols.

    Args:
        directory: Where calls are recorded and counted; None for nowhere.
        listeners: Further listeners.
        more: Further keys of the first listener.
    """
    config = demo_config(http="127.0.0.1:0", grpc="127.0.0.1:0", admin="off")
    config["lifecycle"] = {"pre_stop": "0s", "drain": "1s"}
    config["listeners"][0].update(more)
    config["listeners"] += listeners
    if directory is not None:
        config["capture"] = {
            "directory": str(directory / "capture"),
            "payload": "full",
            "min_free": 0,
        }
        config |= {"state": {"directory": str(directory / "state")}, "stock": {}}
    return yaml.safe_dump(config)


async def outcomes(capture: Path, url: str) -> Counter[tuple[str, Outcome]]:
    """Replay a capture; return how many calls of each protocol had each outcome."""
    address, found = parse_url(url), Counter[tuple[str, Outcome]]()
    connected = connect(address)

    def done(record: Any, _outcome: ReplayOutcome, comparison: Comparison | None) -> None:
        assert comparison is not None
        found[record.call.protocol, comparison.outcome] += 1

    replay = Replay(complete_service(connected, address), ReplayOptions(), RULES, on_done=done)
    try:
        report = await replay.run(Capture(capture).calls())
    finally:
        await connected.close()
    assert (report.failed, report.left_out, report.uncompared) == (0, {}, 0)
    return found
