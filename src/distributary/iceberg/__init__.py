"""Iceberg metadata over the files of Delta tables, without a JVM and without pyiceberg."""
