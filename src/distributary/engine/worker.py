"""The process that Spark's Python workers are forked from, with everything imported beforehand.

Spark's own, `pyspark.daemon`, imports nothing of ours: each worker would do that by itself. And it
takes PySpark from an archive without compiled files, which are compiled again at each start.
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
    """Makes pandas look as if it were not installed, except to PySpark."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas" and not _asked_by_spark():
            raise ModuleNotFoundError(f"{fullname} is kept out of this process", name=fullname)


def _asked_by_spark() -> bool:
    frame = sys._getframe(2)  # noqa: SLF001
    # modules of Python itself that import others; what is compiled has no frame of its own
    while frame.f_back is not None and _module(frame).startswith("importlib"):
        frame = frame.f_back
    return _module(frame).startswith("pyspark.")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def keep_pandas_out() -> None:
    """Have Arrow do without pandas in this process: half a second of a core.

    Arrow looks for it when it makes its first array, in case it is ever given a series. PySpark
    insists on it for some of its functions, and still finds it.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _PandasForSpark())


def _prefer_compiled_spark() -> None:
    """Take PySpark from where it is installed, if this Python has it."""
    rest = [entry for entry in sys.path if not _is_spark_archive(entry)]
    if importlib.machinery.PathFinder.find_spec("pyspark", rest) is not None:
        sys.path[:] = rest
        # a worker's first task has every importer look again, and one of an archive reads it whole
        for entry in [each for each in sys.path_importer_cache if _is_spark_archive(each)]:
            del sys.path_importer_cache[entry]


def _is_spark_archive(entry: str) -> bool:
    """Return whether a path is one of Spark's archives, or inside of one."""
    return any(map(_SPARK_ARCHIVE.fullmatch, PurePath(entry).parts))


def _import_what_tasks_need() -> None:
    from distributary.config.sources.table import SOURCES

    for module in ("distributary.stage.job", *(source.task_module for source in SOURCES)):
        if module:
            importlib.import_module(module)


if __name__ == "__main__":
    _prefer_compiled_spark()
    keep_pandas_out()
    _import_what_tasks_need()
    from pyspark.daemon import manager

    # what nobody collects nobody writes to: one copy serves all workers
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
