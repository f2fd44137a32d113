"""Heads of messages: header fields, metadata, request ids, and names and paths in URLs."""
