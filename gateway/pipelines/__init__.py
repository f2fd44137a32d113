"""Graphs of models that are called like one model; they know only the IR and Service."""
