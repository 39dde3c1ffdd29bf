"""A merged table and the database that it comes from: comparison, healing, snapshots.

`base.py` is what is asked of a database and the table of those that are known; `compare.py` finds
the rows that differ; `lake.py` is the lake's side; `reads.py` turns rows into events of a log.
"""
