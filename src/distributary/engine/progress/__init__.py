"""Progress of pipelines: checkpoints, their owners, recovery and removal."""
