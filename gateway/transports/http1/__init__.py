"""HTTP/1 on asyncio protocols: server connections and pooled clients.

Start with `server_connection.py` or `client.py`.
"""
