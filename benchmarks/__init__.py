"""Records per second against the number of tables, measured on one machine in one run."""
