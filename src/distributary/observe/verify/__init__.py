"""Whether tables hold what the ledger says: by logs, by coordinates, by bytes, without gaps."""
