"""The commands of the migration kit. `registry.py` names each; a command imports what it needs."""
