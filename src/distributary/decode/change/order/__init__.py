"""The place of a change in the log of its source: one module for each kind of database."""
