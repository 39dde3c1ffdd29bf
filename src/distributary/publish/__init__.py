"""The commit of staged files to tables: one interface (`base`), and a module for each format."""
