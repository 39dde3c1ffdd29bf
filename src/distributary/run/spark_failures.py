"""What a failed Spark job was about: the words of the task that failed, not Spark's around them."""

from __future__ import annotations

import errno
import os
import re

from pyspark.errors import PySparkException

from distributary.errors import DistributaryError, ErrorCode, LakeUnavailableError
from distributary.run.open_files import too_few_files
from distributary.stores.uploads import UploadError

_LONGEST = 500
_RAISED = re.compile(
    r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)): (?P<words>.+)$", re.M
)
_NUMBERED = re.compile(r"\[Errno (?P<number>\d+)\] [^:\n]*(?:: '(?P<path>[^'\n]*)')?")
_ABOUT_THE_LAKE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the lake is read-only",
    errno.EACCES: "the lake may not be written by this user",
    errno.EPERM: "the lake may not be written by this user",
    errno.EIO: "the disk does not work",
}


def disk_failed(error: OSError) -> DistributaryError | None:
    """An error of ours for a disk that did not do what it was told; it may pass."""
    return _disk_failed(error.errno or 0, str(error.filename or ""))


def _disk_failed(number: int, path: str) -> DistributaryError | None:
    what = _ABOUT_THE_LAKE.get(number)
    if what is None:
        return None
    return LakeUnavailableError(
        what,
        where=path,
        evidence=os.strerror(number),
        next_step="what tables have already is not written twice: make room or mend the rights, "
        "and run again; `distributary maintain` removes what no table needs",
    )


def spark_failed(error: PySparkException) -> DistributaryError:
    """An error of ours for a job that failed; one that may pass where the disk was the cause."""
    few = too_few_files(str(error))
    if few is not None:
        return few
    raised = list(_RAISED.finditer(str(error)))
    lines = str(error).strip().splitlines()
    evidence = raised[-1][0] if raised else (lines[0] if lines else type(error).__name__)
    if raised and raised[-1]["kind"].endswith(UploadError.__name__):
        where, _, words = raised[-1]["words"].partition(": ")
        return LakeUnavailableError(
            "the object store did not take a file",
            where=where,
            evidence=words[:_LONGEST],
            next_step="nothing of the batch is half done: check the store, the bucket and the "
            "credentials in lake.storage_options, and run again",
        )
    numbered = _NUMBERED.search(evidence)
    disk = _disk_failed(int(numbered["number"]), numbered["path"] or "") if numbered else None
    if disk is not None:
        return disk
    return DistributaryError(
        "Spark could not run the batch",
        code=ErrorCode.SPARK_FAILED,
        evidence=evidence[:_LONGEST],
        next_step="run again with --debug to see Spark's own words",
    )
