"""PyTorch models: TorchScript and exported programs. Read `backend.py` first."""

from gateway.backends.torch.backend import from_spec

__all__ = ["from_spec"]
