"""The events that a merge reads: their order, their copies, their repeats, and the servers they come from."""
