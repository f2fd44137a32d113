"""Pipelines: graphs of models that clients call like one model. Read `pipeline.py` first.

The package imports only the IR and `gateway.service`.
"""
