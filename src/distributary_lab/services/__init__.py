"""A real broker and a registry on this machine, for development and tests."""
