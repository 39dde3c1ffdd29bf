"""Commits staged files to tables: one seam (`base`), three ways (`direct`, `spark`, `parquet`)."""
