"""The status of a lake: the state of its pipelines, the health of its tables, their lag."""
