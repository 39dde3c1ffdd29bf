"""Waits until the process that started it is gone, then stops the services of a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from distributary.lab.services.postgres import discard
from distributary.lab.services.services import Services


def main() -> int:
    """The pipe on standard input ends with the process at its other end."""
    sys.stdin.buffer.read()
    folder = Path(sys.argv[1])
    Services(folder).stop()
    discard(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
