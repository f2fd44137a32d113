"""PyTorch models: TorchScript and exported programs, on the CPU or a GPU. See `backend` first."""

from __future__ import annotations

from gateway.backends.torch.backend import from_plan

__all__ = ["from_plan"]
