"""The plan for tasks: routes, schemas, names and columns of tables."""
