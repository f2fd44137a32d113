"""Pipelines: graphs of models that clients call like one model. Read `pipeline.py` first.

The package imports only the IR and `gateway.service`.

A pipeline is a Service made of Services. Its caller sees one model. Its steps go through the same
routes with their limits, timeouts and retries, but below `observe`: one call of a client is one log
line. A route that leads to a pipeline is never used by its own steps (`app/pipeline_graphs` refuses
cycles), so limits cannot deadlock. The error of a step keeps its code, but loses its wire form and
its permission to retry.
"""
