"""In-process models: leaves that answer calls themselves; they know only the IR."""
