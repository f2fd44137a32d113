"""TorchServe over HTTP.

Read `codec.py` first: `forms.py` reads bodies of several fields, `management.py` writes documents
about models, and `upstream.py` is the side of a client.
"""
