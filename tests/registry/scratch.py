"""A registry that lives as long as the object."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref

from distributary.registry.folder import FileRegistry


class ScratchRegistry(FileRegistry):
    """A registry in a folder of its own, which goes with it."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="registry-")
        weakref.finalize(self, _remove, folder, os.getpid())
        super().__init__(folder, durable=False)


def _remove(folder: str, owner: int) -> None:
    # a process that was forked has the object, too
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
