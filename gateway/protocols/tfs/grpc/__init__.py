"""TensorFlow Serving over gRPC: read `codec.py` first."""
