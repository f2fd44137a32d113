"""Seldon's protocol over REST.

Read `codec.py` first: `bodies.py` finds the message in a request, `requests.py` reads it,
`replies.py` writes answers, and `upstream.py` is the side of a client.
"""
