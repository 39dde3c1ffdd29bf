import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from zipimport import zipimporter

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.stage.exchange import documents_batch, documents_of
from distributary.stage.job import run_tasks

KEPT_OUT = """
import sys
from distributary.engine.worker import keep_pandas_out
keep_pandas_out()
import pyarrow as pa, pyarrow.dataset
assert pa.array([1, None]).null_count == 1
assert "pandas" not in sys.modules
try:
    import pandas
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("found")
from pyspark.sql.pandas.utils import require_minimum_pandas_version
require_minimum_pandas_version()
assert len(pa.table({"a": [1, 2]}).to_pandas()) == 2
"""


def test_arrow_does_without_pandas_and_spark_still_finds_it() -> None:
    ended = subprocess.run([sys.executable, "-c", KEPT_OUT], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def _about(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyspark

    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    loaded = ["pandas", "distributary.source.kafka.consumer", "distributary.source.delta.source"]
    archives = [
        path for path, found in sys.path_importer_cache.items() if isinstance(found, zipimporter)
    ]
    told = {
        "numbers": numbers,
        "archives": archives,
        "spark": pyspark.__file__,
        "loaded": [name for name in loaded if name in sys.modules],
    }
    yield documents_batch([("worker", json.dumps(told))])


@pytest.mark.spark
def test_workers_have_what_tasks_need_and_no_pandas(spark: SparkSession) -> None:
    told = [json.loads(body) for _, body in documents_of(run_tasks(spark, 3, _about))]
    assert sorted(number for each in told for number in each["numbers"]) == [0, 1, 2]
    for each in told:
        assert each["loaded"] == [
            "distributary.source.kafka.consumer",
            "distributary.source.delta.source",
        ]
        assert ".zip" not in each["spark"]
        # before each task PySpark has importers look again: an archive is then read whole
        assert each["archives"] == []


@pytest.mark.spark
def test_a_task_that_fails_says_why(spark: SparkSession) -> None:
    def fails(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise OSError(28, "No space left on device", "/lake/file")
        yield

    with pytest.raises(PySparkException, match=r"Errno 28.*/lake/file"):
        list(run_tasks(spark, 2, fails))


@pytest.mark.spark
def test_a_task_may_have_nothing_to_say(spark: SparkSession) -> None:
    assert list(run_tasks(spark, 2, lambda batches: iter(()))) == []
