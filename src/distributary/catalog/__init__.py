"""Tables under their names, in the catalogs that people query by."""
