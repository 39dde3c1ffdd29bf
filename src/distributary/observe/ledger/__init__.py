"""The ledger: the rows of settled batches, their sums, and the tables that hold them."""
