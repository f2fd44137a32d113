"""Equal models of a Triton that loads none of them by itself, and what its log says about them."""

import dataclasses
import re
from pathlib import Path

from tests.interop.servers.process import Command, Ports
from tests.interop.servers.triton.models import Model, Port
from tests.interop.servers.triton.start import prepare

BROKEN = "broken"
NAMES = tuple(f"resident{number}" for number in range(12))
_TENSORS = ((Port("INPUT0", "INT32", (-1,)),), (Port("OUTPUT0", "INT32", (-1,)),))
_MODELS = tuple(Model(name, *_TENSORS) for name in (*NAMES, BROKEN))
_BEGINS = re.compile(r'"loading: (\w+):1"')
_ENDS = re.compile(r"\"successfully unloaded '(\w+)' version 1\"|\"failed to load '(\w+)'\"")


def prepare_residents(folder: Path, ports: Ports) -> Command:
    """Return the command of a server with `NAMES` and a model that cannot be loaded."""
    command = prepare(folder, ports, _MODELS)
    (folder / "models" / BROKEN / "1" / "model.py").write_text('raise ValueError("no weights")\n')
    words = tuple(word for word in command.words if not word.startswith("--load-model"))
    return dataclasses.replace(command, words=words)


@dataclasses.dataclass
class HeldModels:
    """What a part of the log says.

    Attributes:
        loads: The models that were loaded, in order.
        unloads: The models that were unloaded.
        most: The largest number of models that were loading or loaded.
    """

    loads: list[str]
    unloads: list[str]
    most: int


def read_log(path: Path) -> HeldModels:
    """Return what the log of a server says."""
    found = HeldModels([], [], 0)
    held: set[str] = set()
    for line in path.read_text(errors="replace").splitlines():
        begins, ends = _BEGINS.search(line), _ENDS.search(line)
        if begins is not None:
            found.loads.append(begins[1])
            held.add(begins[1])
            found.most = max(found.most, len(held))
        elif ends is not None:
            held.discard(ends[1] or ends[2])
            if ends[1]:
                found.unloads.append(ends[1])
    return found
