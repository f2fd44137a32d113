"""What `gateway validate` warns of, and a start does not; errors are in `gateway.app.check`."""
