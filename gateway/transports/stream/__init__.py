"""Framed TCP and unix sockets: GraphPipe streams and brpc.

Start with `server_connection.py`; `protocol_sniffing.py` lets several protocols share a port.
"""
