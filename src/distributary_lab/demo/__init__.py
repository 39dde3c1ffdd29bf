"""What `demo` plays: simulated records, a pipeline that ingests them, and what came of it."""
