"""PyTorch models: TorchScript and exported programs. Read `backend.py` first."""

from __future__ import annotations

from gateway.backends.torch.backend import from_spec

__all__ = ["from_spec"]
