import errno

import pytest
from pyspark.errors import PySparkException

from distributary.errors import ErrorCode, LakeUnavailableError, PublishError, SetupError
from distributary.spark.session import disk_failed, spark_failed

WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "delta/parquet.py", line 66, in _write
    file.write(content)
{last}
"""


def failed(last: str) -> PySparkException:
    return PySparkException(WORKER.format(last=last))


@pytest.mark.parametrize("number", [28, 30, 13])
def test_a_lake_that_cannot_be_written_is_named_and_may_pass(number: int) -> None:
    found = spark_failed(failed(f"OSError: [Errno {number}] Words of it: '/lake/silver/x.parquet'"))
    assert found.code == ErrorCode.LAKE_UNAVAILABLE
    assert found.where == "/lake/silver/x.parquet"
    assert found.retryable


def test_a_full_disk_need_not_name_a_file() -> None:
    assert spark_failed(failed("OSError: [Errno 28] No space left on device")).code == (
        ErrorCode.LAKE_UNAVAILABLE
    )


def test_other_failures_say_what_the_task_said() -> None:
    found = spark_failed(failed("pyarrow.lib.ArrowInvalid: no\nValueError: the last word counts"))
    assert found.code == ErrorCode.SPARK_FAILED
    assert found.evidence == "ValueError: the last word counts"


def test_an_error_of_ours_keeps_its_code_and_its_advice() -> None:
    error = PublishError(
        "cannot read", where="/lake/log", evidence="it is empty", next_step="put it back"
    )
    found = spark_failed(failed(f"distributary.errors.PublishError: {error}"))
    assert found.code is ErrorCode.COMMIT_FAILED
    parts = (found.what, found.where, found.evidence, found.next_step)
    assert parts == ("cannot read", "/lake/log", "it is empty", "put it back")


def test_a_lake_that_a_task_could_not_reach_may_pass() -> None:
    words = LakeUnavailableError("cannot read", where="/lake/log")
    found = spark_failed(failed(f"distributary.errors.LakeUnavailableError: {words}"))
    assert found.retryable and found.where == "/lake/log"


def test_an_unknown_code_is_not_believed() -> None:
    assert spark_failed(failed("distributary.errors.X: NO_CODE: x")).code is ErrorCode.SPARK_FAILED


@pytest.mark.parametrize("text", ["", "Job aborted.", "OSError: [Errno 99999] unheard of"])
def test_anything_else_has_words_too(text: str) -> None:
    found = spark_failed(PySparkException(text))
    assert found.code == ErrorCode.SPARK_FAILED
    assert found.evidence


def test_a_hostile_text_is_cut() -> None:
    assert len(spark_failed(failed("ValueError: " + "x" * 100_000)).evidence or "") <= 500


@pytest.mark.parametrize(
    "number", [errno.EROFS, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.ENOTDIR]
)
def test_a_disk_that_fails_for_a_while_is_waited_for(number: int) -> None:
    error = disk_failed(OSError(number, "x", "/lake/file"))
    assert isinstance(error, LakeUnavailableError)
    assert error.retryable and error.where == "/lake/file"
    assert disk_failed(OSError(errno.ENOENT, "x", "/lake/file")) is None


@pytest.mark.parametrize(
    "text",
    [
        "ModuleNotFoundError: No module named 'distributary'",
        'java.io.IOException: Cannot run program "python3.11": error=2, No such file or directory',
        "./environment/bin/python: 6: exec: python3.11: not found",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
    ],
)
def test_workers_without_packages_are_told_apart_from_defects(text: str) -> None:
    found = spark_failed(failed(text))
    assert isinstance(found, SetupError) and found.code is ErrorCode.SPARK_FAILED
    assert "spark.environment" in found.next_step
