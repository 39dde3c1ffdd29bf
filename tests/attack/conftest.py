"""Seeds of the fuzzers, and an end for whatever never ends."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

FIRST = int(os.environ.get("FUZZ_SEED", "1"))
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "3"))
_MOST_SECONDS = 300


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each fuzzer plays some rounds; the name of a test that fails ends with its seed."""
    if "dice" in metafunc.fixturenames:
        seeds = range(FIRST, FIRST + ROUNDS)
        metafunc.parametrize("dice", seeds, indirect=True, ids=lambda seed: f"seed-{seed}")


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    """Everything that a fuzzer leaves to chance: FUZZ_SEED=7 FUZZ_ROUNDS=1 plays a round again."""

    def end(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(_MOST_SECONDS)
    yield random.Random(request.param)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
