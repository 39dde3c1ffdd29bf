"""Commits staged files to tables: one seam (`base`), several ways (`direct`, `spark`)."""
