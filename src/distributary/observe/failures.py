"""Why a pipeline's last run failed, kept beside its checkpoint for those who ask later."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distributary.errors import DistributaryError

_NAME = "failure.json"


def write_failure(checkpoint: Path, error: DistributaryError) -> None:
    """Remember an error; a folder that is not there is not made for it.

    Where the error is that nothing can be written, neither can this: the error is what counts.
    """
    content = {"at": datetime.now(UTC).isoformat(), **error.as_dict()}
    with suppress(OSError):
        (checkpoint / _NAME).write_text(json.dumps(content), encoding="utf-8")


def clear_failure(checkpoint: Path) -> None:
    """The pipeline has done something since."""
    with suppress(OSError):
        (checkpoint / _NAME).unlink(missing_ok=True)


def read_failure(checkpoint: str) -> dict[str, Any] | None:
    """The last run's error, if that is how it ended."""
    try:
        content = json.loads((Path(checkpoint) / _NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
