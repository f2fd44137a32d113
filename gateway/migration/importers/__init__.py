"""Configurations of other servers, read into one of the gateway."""
