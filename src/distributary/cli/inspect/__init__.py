"""Commands that only look: status, rows, columns and schemas, and the way of a record."""
