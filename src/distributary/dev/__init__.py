"""A real broker and a real registry on this machine, for development and tests."""
