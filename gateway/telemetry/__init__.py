"""Logs and metrics: set up once, named here."""
