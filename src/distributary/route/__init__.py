"""Type to table: which names are safe, what a table is called, which schemas belong to a type."""

from distributary.route.naming import propose, quote_sql
from distributary.route.subjects import subject_verdict
from distributary.route.type_names import casefold_key, check_type_name

__all__ = ["casefold_key", "check_type_name", "propose", "quote_sql", "subject_verdict"]
