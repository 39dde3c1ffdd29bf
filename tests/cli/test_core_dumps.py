"""Passwords are in the memory of a run: no copy of it is left behind when it crashes."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

SHOWN = """
import resource
from distributary.cli import main
resource.setrlimit(resource.RLIMIT_CORE, (4096, {hard}))
main(["--version"])
print(*resource.getrlimit(resource.RLIMIT_CORE))
"""


@pytest.mark.parametrize(("asked", "limit"), [("", 0), ("1", 4096)])
def test_no_core_is_dumped_unless_somebody_asks(
    monkeypatch: pytest.MonkeyPatch, asked: str, limit: int
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this system allows no core dumps")
    monkeypatch.setenv("DISTRIBUTARY_CORE_DUMPS", asked)
    done = subprocess.run(
        [sys.executable, "-c", SHOWN.format(hard=hard)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"{limit} {hard}"
