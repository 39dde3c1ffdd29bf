"""The simulator of change data: a database, and its changes for Datastream and Debezium."""
