"""The process from which Spark's Python workers are forked, with all modules imported.

Spark's `pyspark.daemon` does not import our modules, so each worker would import them. It also
takes PySpark from an archive without compiled files, which are compiled at each start.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import re
import sys
from pathlib import PurePath
from types import FrameType

_SPARK_ARCHIVE = re.compile(r"pyspark\.zip|py4j-.*-src\.zip|spark-core_.*\.jar")


class _PandasForSpark:
    """An import hook that hides pandas from all modules except PySpark."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas" and not _asked_by_spark():
            raise ModuleNotFoundError(f"{fullname} must not be imported here", name=fullname)


def _asked_by_spark() -> bool:
    frame = sys._getframe(2)  # noqa: SLF001
    # skips Python's import machinery; compiled modules have no frame
    while frame.f_back is not None and _module(frame).startswith("importlib"):
        frame = frame.f_back
    return _module(frame).startswith("pyspark.")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def keep_pandas_out() -> None:
    """Prevent Arrow from importing pandas in this process, which takes half a second of a core.

    Arrow imports pandas with its first array, in case it gets a series. PySpark needs pandas for
    some functions, and still finds it.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _PandasForSpark())


def _prefer_compiled_spark() -> None:
    """Import PySpark from its installation instead of Spark's archive, if it is installed."""
    rest = [entry for entry in sys.path if not _is_spark_archive(entry)]
    if importlib.machinery.PathFinder.find_spec("pyspark", rest) is not None:
        sys.path[:] = rest
        # at a worker's first task all importers invalidate their caches, and an archive is read
        # again
        for entry in [each for each in sys.path_importer_cache if _is_spark_archive(each)]:
            del sys.path_importer_cache[entry]


def _is_spark_archive(entry: str) -> bool:
    """Return whether a path is an archive of Spark, or inside one."""
    return any(map(_SPARK_ARCHIVE.fullmatch, PurePath(entry).parts))


def _import_what_tasks_need() -> None:
    from distributary.config.sources.source_types import SOURCES

    for module in ("distributary.stage.job", *(source.task_module for source in SOURCES)):
        if module:
            importlib.import_module(module)


if __name__ == "__main__":
    _prefer_compiled_spark()
    keep_pandas_out()
    _import_what_tasks_need()
    from pyspark.daemon import manager

    # frozen objects are never written by the collector, so all workers share one copy
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
