"""The process that Spark's Python workers are forked from, with everything imported beforehand.

Spark's own, `pyspark.daemon`, imports nothing of ours: each worker would do that by itself. And it
takes PySpark from an archive without compiled files, which are compiled again at each start.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import sys
from pathlib import PurePath


class _NoPandas:
    """Makes pandas look as if it were not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def keep_pandas_out() -> None:
    """Load Arrow without pandas, which it would import for nothing: half a second, 40 MB.

    It looks once, before it makes its first array. PySpark, which insists on pandas for some of its
    functions, still finds it.
    """
    absent = _NoPandas()
    sys.meta_path.insert(0, absent)
    try:
        importlib.import_module("pyarrow.dataset")
    finally:
        sys.meta_path.remove(absent)


def _prefer_compiled_spark() -> None:
    """Take PySpark from where it is installed, if this Python has it."""
    rest = [entry for entry in sys.path if not _is_spark_archive(entry)]
    if importlib.machinery.PathFinder.find_spec("pyspark", rest) is not None:
        sys.path[:] = rest


def _is_spark_archive(entry: str) -> bool:
    name = PurePath(entry).name
    return name == "pyspark.zip" or (name.startswith("py4j-") and name.endswith("-src.zip"))


def _import_what_tasks_need() -> None:
    for module in ("stage.job", "source.consumer", "source.delta"):
        importlib.import_module(f"distributary.{module}")


if __name__ == "__main__":
    _prefer_compiled_spark()
    keep_pandas_out()
    _import_what_tasks_need()
    from pyspark.daemon import manager

    # what nobody collects nobody writes to: one copy serves all workers
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
