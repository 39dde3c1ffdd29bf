"""Where notices go: one file per kind of target, one way to make them all."""
