"""Models that run in the gateway's process: ONNX, PyTorch and Python. Read `base.py` first."""
