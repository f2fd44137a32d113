"""MLflow's scoring protocol over HTTP.

Read `codec.py` first: `requests.py` reads bodies, `upstream.py` is the side of a client.
"""
