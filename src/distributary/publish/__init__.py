"""Commits staged files to tables: one seam (`base`), and a module for each way behind it."""
