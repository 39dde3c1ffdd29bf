"""A handful of short rounds with fixed seeds; `make faults` plays others for hours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "faults"),
    [
        (
            "delta",
            "back:checkpoint:before_settle/heedless,gone:checkpoint,gone:table,other:checkpoint,"
            "back:decided+checkpoint,stop-reset:after_manifest",
        ),
        ("avro", "kill:before_merge,empty:checkpoint:manifest"),
    ],
)
def test_a_fault_neither_loses_nor_doubles_nor_invents(
    tmp_path: Path, shape: str, faults: str
) -> None:
    count = str(faults.count(",") + 1)
    options = ["--rounds", "1", "--seed", "7", "--faults", count, "--shapes", shape]
    played = subprocess.run(
        [sys.executable, "-m", "tests.faults", *options, "--only", faults, "--keep", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert played.returncode == 0, played.stdout + played.stderr
