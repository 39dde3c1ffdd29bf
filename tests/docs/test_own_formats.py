"""The page about formats and sources of one's own: its package is installed, its pipeline runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path("docs/howto/own-formats.md").read_text()
RUN = """
import threading
from deltalake import DeltaTable
from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.seams import make_source
from distributary.operations.plan.trial_registry import preview
from distributary.source.source_entry import entry_of
from distributary.spark.in_process import in_process
from distributary.threads import end_process

def no_spark():
    raise AssertionError("nothing here needs a JVM")

pipeline = Pipeline.load("mill.yaml")
config = pipeline.config
print(preview(pipeline).records)
for name, check in entry_of(config.source).checks(config.source, config):
    print(check().found)
print(entry_of(config.source).sample(config.source).looked_at)
for more in (b"", b"id=3;speed=4.5;state=off\\nid=4;state\\n"):
    with open("mill.log", "ab") as file:
        file.write(more)
    with pipeline.open(in_process(no_spark)) as context:
        source = make_source(config)
        done = StreamRun(context, source, stop=threading.Event()).run(AVAILABLE_NOW)
        print(done.counts.equation())
rows = DeltaTable("lake/silver_mill").to_pyarrow_table().sort_by("id").to_pylist()
for row in rows:
    print(row["id"], row["speed"], row["state"], row["_offset"])
(letter,) = DeltaTable("lake/dead_letters").to_pyarrow_table().to_pylist()
print(letter["error_code"], letter["error_message"])
# Arrow's threads may still use Python files while Python is taken down, see the page about reading
end_process(0)
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Install the package of the page as `pip` would: modules, and the entry points' metadata."""
    for text in re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE, re.DOTALL):
        name = text.split()[1].rstrip(":")
        (tmp_path / name).write_text(text)
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    groups = tomllib.loads(text)["project"]["entry-points"]
    points = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in entries.items())
        for group, entries in groups.items()
    ]
    folder = tmp_path / "mill-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mill\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("\n".join(points))
    (tmp_path / "mill.log").write_bytes(b"id=1;speed=2.5;state=on\nid=2;speed=3;state=on\n")
    return tmp_path


def test_the_pipeline_of_the_page_runs(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=installed,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin", "XDG_STATE_HOME": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2",
        "mill has 2 records",
        "2 of 2 records of mill, the oldest",
        "read 2 = written 2 + dead letters 0 + parked 0",
        "read 2 = written 1 + dead letters 1 + parked 0",
        "1 2.5 on 0",
        "2 3.0 on 1",
        "3 4.5 off 2",
        "PAYLOAD_MISMATCH the payload is not pairs: ValueError",
    ]


@pytest.mark.parametrize(("setting", "at"), [("type: lines", "source"), ("pairs", "payload")])
def test_what_no_package_brings_is_refused_by_name(setting: str, at: str, installed: Path) -> None:
    file = installed / "mill.yaml"
    file.write_text(file.read_text().replace(setting, f"{setting}x"))
    done = subprocess.run(
        [sys.executable, "-m", "distributary", "validate", "mill.yaml"],
        cwd=installed,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin", "XDG_STATE_HOME": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert at in done.stderr + done.stdout
    assert "must be" in done.stderr + done.stdout
