"""Kinds of values in YAML, and the base of the configuration's models."""
