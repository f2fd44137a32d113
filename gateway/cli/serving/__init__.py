"""The command `serve`, its flags, and how a gateway is run."""
