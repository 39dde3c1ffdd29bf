"""Frozen facts that pass between the steps of a batch. Nothing here does I/O."""
