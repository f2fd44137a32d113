"""Policies: layers around a service. Each file has one layer, which changes one aspect of calls.

Read `rename.py` first for the form of a layer; `gateway/app/layers.py` has their order.
"""
