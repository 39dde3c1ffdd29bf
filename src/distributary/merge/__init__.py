"""Tables of current rows out of logs of changes: order, decide, apply; rebuild and verify."""
