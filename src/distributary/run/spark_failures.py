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
    what = _ABOUT_THE_LAKE.get(int(numbered["number"])) if numbered else None
    if numbered is not None and what is not None:
        return LakeUnavailableError(
            what,
            where=numbered["path"] or "",
            evidence=os.strerror(int(numbered["number"])),
            next_step="nothing of the batch is half done: make room or mend the rights, and run "
            "again; `distributary maintain` removes what no table needs",
        )
    return DistributaryError(
        "Spark could not run the batch",
        code=ErrorCode.SPARK_FAILED,
        evidence=evidence[:_LONGEST],
        next_step="run again with --debug to see Spark's own words",
    )
