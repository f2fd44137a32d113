"""TensorFlow Serving over REST, and KServe V1 as a dialect of it: read `codec.py` first."""
