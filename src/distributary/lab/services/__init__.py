"""A real broker, registry, database and connector on this machine, for development and tests."""
