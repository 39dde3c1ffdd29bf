from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from distributary_lab.services.processes import end, running


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose processes are gone after the test."""
    path = tmp_path.resolve() / "dev"
    yield path
    end(running(path).values(), gently=False)
