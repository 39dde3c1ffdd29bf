"""Files on object stores, by their addresses, with the credentials that a pipeline file names."""
