"""grps over HTTP: paths, requests, responses, streams and the status page.

Start with `codec.py`.
"""
