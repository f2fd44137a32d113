"""What every implementation of HTTP/1 shares: exchanges, bodies, heads and their limits.

Start with `exchange.py`: one request with its response, from the first byte to the last.
"""
