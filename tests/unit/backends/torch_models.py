"""Small PyTorch models for tests, written to files as TorchScript and as exported programs.

Only imported where PyTorch is there.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

BATCH = torch.export.Dim("batch", min=1, max=64)


class Sums(torch.nn.Module):
    """Sum and difference of two inputs, as a tuple."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


class Named(torch.nn.Module):
    """The same as a dict."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": a + b, "difference": a - b}


class Both(NamedTuple):
    sum: torch.Tensor
    difference: torch.Tensor


class Fields(torch.nn.Module):
    """The same as a named tuple."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Both:
        return Both(a + b, a - b)


class Identity(torch.nn.Module):
    """Returns a new tensor equal to its input, as programs do not return an input itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


class Same(torch.nn.Module):
    """Returns the very tensor of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Overwrites(torch.nn.Module):
    """Writes into its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class Counts(torch.nn.Module):
    """Returns how often it was called, as its own tensor."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x.sum() * 0 + 1)
        return self.count


class Weight(torch.nn.Module):
    """Returns its weight for any input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight


class Huge(torch.nn.Module):
    """Allocates too much memory for inputs above zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = int(x.sum().item())
        return torch.zeros([size * 1000000000000000 + 1])


class HugeThere(torch.nn.Module):
    """The same, on the device of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = int(x.sum().item())
        return torch.zeros([size * 1000000000000 + 1], device=x.device)


class Optional(torch.nn.Module):
    """Takes a second input or none, and a number with a default."""

    def forward(
        self, x: torch.Tensor, y: torch.Tensor | None = None, factor: int = 2
    ) -> torch.Tensor:
        return x * factor if y is None else x * factor + y


class Text(torch.nn.Module):
    """Takes an argument that is not a tensor."""

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x if name else -x


class Lists(torch.nn.Module):
    """Returns a list of lists."""

    def forward(self, x: torch.Tensor) -> list[list[torch.Tensor]]:
        return [[x]]


class Complex(torch.nn.Module):
    """Returns complex numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, x)


class Keeps(torch.nn.Module):
    """Writes into a row of its buffer, and into nothing else that lasts."""

    rows: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = x + 1
        own.add_(1)
        self.rows[0].copy_(x[0])
        return own


class Scaled(torch.nn.Module):
    """Takes a number that may vary."""

    def forward(self, x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor


class Nested(torch.nn.Module):
    """Takes tensors in a dict, and a number; returns one tensor or None."""

    def forward(self, pair: dict[str, torch.Tensor], factor: int = 3) -> tuple[Any, Any]:
        return pair["left"] * factor + pair["right"], None


def freeze(module: torch.nn.Module, path: Path) -> Path:
    """Write *module* as TorchScript that is frozen to its forward method."""
    torch.jit.freeze(torch.jit.script(module.eval())).save(str(path))
    return path


def script(module: torch.nn.Module, path: Path) -> Path:
    """Write *module* as TorchScript."""
    torch.jit.script(module.eval()).save(str(path))
    return path


def export(
    module: torch.nn.Module,
    path: Path,
    *arguments: Any,
    dynamic: Any = None,
    lowered: bool = False,
    bare: bool = False,
    **keywords: Any,
) -> Path:
    """Write *module* as an exported program.

    Lowered, it writes into nothing but at its end; bare, it keeps no example of its inputs.
    """
    program = torch.export.export(
        module.eval(), tuple(arguments), keywords or None, dynamic_shapes=dynamic
    )
    if bare:
        program.example_inputs = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about its own use of itself
        torch.export.save(program.run_decompositions() if lowered else program, path)
    return path
