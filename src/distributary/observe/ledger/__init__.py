"""The ledger: what was done in each batch, its rows, their sums, and how they are written."""
