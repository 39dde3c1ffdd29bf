"""The events that a merge reads: their order, copies and repeats, and the servers they are from."""
