"""A handful of short rounds with fixed seeds; `make faults` plays others for hours."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.faults import faults_for, wanted
from tests.faults.feeds import SHAPES, Shape
from tests.faults.forkserver import ForkServer

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("asked", "variants"),
    [
        ("flip", set()),
        ("flip:checkpoint", set()),
        ("flip:checkpoint:manifest/then_run", {"manifest", "then_run"}),
        ("flip:check", None),
        ("back:checkpoint", None),
    ],
)
def test_a_fault_is_asked_for_by_way_thing_and_variant(
    asked: str, variants: set[str] | None
) -> None:
    assert wanted(asked, "flip:checkpoint") == variants


def test_a_pair_is_another_experiment_than_its_first_thing() -> None:
    assert wanted("back:lake", "back:lake+checkpoint") is None
    assert wanted("back:lake+checkpoint:settled", "back:lake+checkpoint") == {"settled"}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_is_named_is_played_in_the_order_of_the_names(shape: Shape) -> None:
    names = ["gone:checkpoint", "kill", "back:checkpoint"]
    played = [order.name for order in faults_for(shape, names)]
    assert played == [name for name in names if shape.jobs != "shards" or name == "kill"]


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


class _Answers(ForkServer):
    """A fork server whose processes are answers in a pipe."""

    def __init__(self, *answers: dict[str, int]) -> None:
        self._ended, self._unread = {}, b""
        self._reads, writes = os.pipe()
        os.write(writes, "".join(json.dumps(answer) + "\n" for answer in answers).encode())
        os.close(writes)
        self._requests = io.StringIO()

    @property
    def _stdin(self) -> Any:
        return self._requests

    @property
    def _stdout(self) -> int:
        return self._reads


def test_a_number_that_another_process_had_says_nothing_of_how_this_one_ended(
    tmp_path: Path,
) -> None:
    number = 4711
    killed, well = {"ended": number, "status": -9}, {"ended": number, "status": 0}
    server = _Answers({"started": number}, killed, {"started": number}, well)
    logs = {"out": tmp_path / "out", "err": tmp_path / "err", "variables": {}}
    first = server.start(["run"], **logs)
    assert first.wait() == -9
    second = server.start(["verify"], **logs)
    assert second.wait() == 0
    assert (first.poll(), second.poll()) == (-9, 0)
