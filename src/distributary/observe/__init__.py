"""The ledger, and everything that reads it: status, trace, metrics, alerts, lineage, checks."""
