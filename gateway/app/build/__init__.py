"""Builds the services between listeners and upstreams, for a configuration.

Read `service_graph.py` first.
"""
