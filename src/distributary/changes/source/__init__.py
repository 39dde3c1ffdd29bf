"""A merged table and the database that it comes from: comparison, healing, snapshots.

`base.py` has the protocol of a database and the table of supported ones; `compare.py` finds the
rows that differ; `lake_side.py` reads the lake; `reads.py` turns rows into events of a log.
"""
