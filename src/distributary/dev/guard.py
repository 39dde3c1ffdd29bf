"""Services that end with the process that wanted them, however it ends.

A second process waits on a pipe whose other end closes with this one, also when it is killed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


class Guard:
    """Watches over the services of a folder until it is dismissed."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - a module of this package
            [sys.executable, "-m", "distributary.dev.watch", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal is not for the one who tidies up after it
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """There is nothing to watch any more."""
        self._process.terminate()
        self._process.communicate()
