"""The API of the page, with one module for each kind of data."""
