"""Processes that carry the mark of a service and do nothing: they stand for the real ones."""

from __future__ import annotations

import sys
from pathlib import Path

from distributary_lab.services.processes import Running, launch, mark

SLEEP = "import time; time.sleep(300)"


def start_marked(folder: Path, service: str, port: int, *, script: str = SLEEP) -> Running:
    """What `running` takes for a service of this folder."""
    command = [sys.executable, "-c", script, mark(service, port, folder)]
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{service}.out"
    return launch(command, service=service, port=port, folder=folder, output=output)
