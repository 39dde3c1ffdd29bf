"""The user's folder of log files: for nobody else, because records and settings are in them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import platformdirs

_DAYS = 7


def log_folder() -> Path:
    """The folder, made if it can be; files of past weeks are removed."""
    folder = platformdirs.user_log_path("distributary")
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # one of an earlier version could be read by everybody
        folder.chmod(0o700)
        for old in folder.iterdir():
            if time.time() - old.stat().st_mtime > _DAYS * 86400:
                old.unlink(missing_ok=True)
    return folder


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: what it creates is for this user alone."""
    return os.open(path, flags, 0o600)
