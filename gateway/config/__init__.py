"""The YAML file: its models, its loader, its units. Imports nothing else of the gateway."""
