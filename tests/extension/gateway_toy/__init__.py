"""A package that extends the gateway by entry points alone."""
