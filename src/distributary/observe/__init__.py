"""What was done, what went wrong, and how it stands: the ledger and everything read from it."""
