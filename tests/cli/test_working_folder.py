"""A command may be typed in a folder that others can write to: nothing there is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHOWN = """
import subprocess, sys
from distributary.cli import command_line, main

def shown(*_, **__):
    # as PySpark starts its workers
    return subprocess.call([sys.executable, "-m", "calendar", "2026", "1"])

command_line.app = shown
sys.exit(main(["--version"]))
"""


def test_processes_of_a_command_import_nothing_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "datetime.py").write_text("raise SystemExit('foreign code ran')")
    shown = [sys.executable, "-P", "-c", SHOWN]
    done = subprocess.run(shown, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
