"""TorchServe over HTTP.

Read `codec.py` first: `form_fields.py` reads bodies of several fields, `opaque.py` passes requests
on to a server as they are, and `upstream.py` is the side of a client.
"""
