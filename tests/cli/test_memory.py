"""The allocator of a run: freed memory goes back to the system."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

_CHOICE = "ARROW_DEFAULT_MEMORY_POOL"
_RUN = f"""
import atexit, os, runpy, sys

def show():
    import pyarrow as pa
    print(pa.default_memory_pool().backend_name, os.environ.get("{_CHOICE}"))

atexit.register(show)
sys.argv = ["distributary", "run", "/no/such/file.yaml"]
runpy.run_module("distributary", run_name="__main__")
"""


def allocator(chosen: str | None) -> str:
    """Return the allocator of a run, and what its child processes find in the environment."""
    environ = {name: value for name, value in os.environ.items() if name != _CHOICE}
    if chosen is not None:
        environ[_CHOICE] = chosen
    run = subprocess.run(
        [sys.executable, "-c", _RUN], env=environ, capture_output=True, text=True, check=False
    )
    return run.stdout.strip()


@pytest.mark.skipif(
    "jemalloc" not in pa.supported_memory_backends(), reason="Arrow was built without it"
)
def test_a_run_returns_freed_memory_and_workers_keep_their_allocator() -> None:
    assert allocator(None) == "jemalloc None"


def test_the_choice_of_the_user_stays() -> None:
    assert allocator("system") == "system system"
