"""The commands that call a server: `infer`, `models` and `health`."""
