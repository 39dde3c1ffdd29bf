"""What a failure tells, and what it does not."""

from __future__ import annotations

import pytest
from deltalake.exceptions import DeltaError

from distributary.delta.column_merge import ColumnConflictError
from distributary.delta.log_reading import BrokenLogError
from distributary.delta.tables import OvertakenError, as_publish_error
from distributary.errors import (
    ErrorCode,
    LakeUnavailableError,
    PublishError,
    StagedFileError,
    clean,
)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (OSError("no space left"), ErrorCode.LAKE_UNAVAILABLE, LakeUnavailableError),
        (DeltaError("unknown feature"), ErrorCode.COMMIT_FAILED, PublishError),
        (OvertakenError("taken"), ErrorCode.COMMIT_FAILED, PublishError),
        (ColumnConflictError("n", "integer", "string"), ErrorCode.COMMIT_FAILED, PublishError),
        (StagedFileError("gone"), ErrorCode.STAGED_FILE_MISSING, StagedFileError),
        (BrokenLogError("not all is there"), ErrorCode.COMMIT_FAILED, PublishError),
        (ZeroDivisionError(), ErrorCode.COMMIT_FAILED, PublishError),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_of_a_library_becomes_ours(
    error: Exception, code: ErrorCode, kind: type[PublishError]
) -> None:
    ours = as_publish_error(error, doing="commit to a table", path="lake/chess")
    assert type(ours) is kind
    assert ours.code is code


@pytest.mark.parametrize(
    "text",
    [
        "GET https://user:canary@store/x failed",
        "GET https://store/x?X-Amz-Signature=canary&b=c failed",
        "GET https://store/x?sig=canary",
    ],
)
def test_secrets_in_addresses_are_masked(text: str) -> None:
    assert "canary" not in clean(text)
    assert "store/x" in clean(text)


def test_colours_stacks_and_control_characters_are_dropped() -> None:
    text = "Kernel error\n  \x1b[31m↳\x1b[0m no\x07 route\n   0: <unknown>\n  at start_thread"
    assert clean(text) == "Kernel error; no  route"
    assert len(clean("x" * 10_000)) < 1_000
