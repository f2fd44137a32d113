"""What `gateway migration-demo` shows: a migration between two servers, with a fault."""
