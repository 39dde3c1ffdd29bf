"""One river in, a delta of tables out: one stream of mixed messages becomes one table per type."""

__version__ = "0.1.0"
