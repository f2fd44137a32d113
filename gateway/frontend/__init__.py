"""A server transport with a codec. Begin with `frontend.py`."""
