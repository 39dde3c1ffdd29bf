"""What leaves a table: rows, erased records and old files; and the versions that must stay."""
