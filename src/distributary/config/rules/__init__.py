"""The sections of the pipeline file with rules for rows: shapes, expectations, keys, aggregates."""
