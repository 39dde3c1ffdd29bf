"""Many pipelines under one supervisor: one process each, watched, restarted and stopped."""
