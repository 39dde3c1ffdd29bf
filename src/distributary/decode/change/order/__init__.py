"""The place of a change in the log of its source: one module for each kind of database.

| source | a | b | c |
|---|---|---|---|
| MySQL, MariaDB | number of the binary log | position in it | row of the event |
| PostgreSQL | log sequence number | | |
| SQL Server, Db2 (Datastream) | first part of the LSN | second | third |
| SQL Server, Db2 (Debezium) | first part of the LSN | second and third | number of the event |
| Oracle | SCN | redo log and block of `rs_id` | offset of `rs_id` and SSN |
| MongoDB (Debezium) | seconds | number within the second | |
| any other (Datastream) | first number of `sort_keys` after the time | second | third |
| any other (Debezium), and flattened events whose deletes have no position | | | |

Changes at one place, or without a place, are in the order in which they came.
"""
