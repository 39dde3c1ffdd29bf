"""A folder for a program that refuses to run as root: another user's, where that one can reach it.

Folders of root are closed to others, those above them included: what is lent lies in the system's
folder for temporary files, and a link in the service's folder tells where. Whoever is not root
lends nothing to anybody, but has the same layout.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from distributary.dev.process import lent
from distributary.errors import ErrorCode, SetupError

_USERS = ("postgres", "nobody")


def other_user() -> tuple[int, int] | None:
    """User and group for a program that root must not run itself; None for everybody else."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with suppress(KeyError):
            known = pwd.getpwnam(name)
            return known.pw_uid, known.pw_gid
    raise SetupError(
        "PostgreSQL does not run as root, and there is no other user for it",
        code=ErrorCode.SERVICE_FAILED,
        where=f"users {', '.join(_USERS)}",
        next_step="useradd --system postgres, or start this as another user than root",
    )


def lend(folder: Path) -> Path:
    """The folder that the other user has; made at the first call."""
    link, user = lent(folder), other_user()
    if _is_whole(link, user[0] if user else os.geteuid()):
        return link.resolve()
    link.unlink(missing_ok=True)
    place = Path(tempfile.mkdtemp(prefix="distributary-dev-"))
    if user:
        os.chown(place, *user)
    link.symlink_to(place)
    return place


def _is_whole(link: Path, user: int) -> bool:
    """Whether it leads to a closed folder of that user: others may write in the system's folder."""
    if not link.is_dir():
        return False
    found = link.stat()
    return found.st_uid == user and not found.st_mode & 0o077


def take_back(folder: Path) -> None:
    """Remove what was lent."""
    link = lent(folder)
    if link.is_symlink():
        shutil.rmtree(link.resolve(), ignore_errors=True)
        link.unlink()
