"""Frozen facts that pass between the stages. Nothing here does I/O."""
