"""Many pipelines under one supervisor: a process each, watched, started again, stopped together."""
