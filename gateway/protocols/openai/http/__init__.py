"""OpenAI's form over HTTP.

Read `codec.py` first.
"""
