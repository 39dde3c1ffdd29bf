"""What `plan` foresees: a trial of the pipeline, schemas that are not registered yet, places of shapes."""
