"""The trial that `plan` makes of a pipeline: unregistered schemas, tables, places of shapes."""
