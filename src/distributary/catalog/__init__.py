"""Registration of tables by name in the catalogs that people query."""
