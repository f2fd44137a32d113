"""One folder for each protocol: all that one protocol is; no protocol knows another."""
