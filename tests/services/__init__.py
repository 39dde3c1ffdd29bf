"""Servers that only tests need, beside those of `distributary dev up`."""
