"""`backup` and `restore`, as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.lakes.backups import Live, assert_exact, finish


@pytest.fixture
def live(tmp_path: Path) -> Live:
    lake = Live(tmp_path / "a")
    lake.batch({"chess": 3, "go": 2}, letters=1)
    lake.batch({"chess": 1})
    return lake


def elsewhere(live: Live, root: Path) -> Path:
    """Return a pipeline file that names another lake."""
    root.mkdir()
    file = root / "games.yaml"
    file.write_text(live.file.read_text().replace(str(live.lake), str(root / "lake")))
    return file


def test_a_backup_is_taken_and_put_back_by_files(cli: Cli, live: Live, tmp_path: Path) -> None:
    would = cli("backup", live.file, tmp_path / "backup", "--dry-run", "--json")
    assert (would.code, would.json["dry_run"], would.json["point"]) == (0, True, None)
    done = cli("backup", live.file, tmp_path / "backup", "--json")
    assert (done.code, done.json["version"], done.json["retries"]) == (0, 1, 0)
    assert done.json["pipelines"]["games"] == {
        "settled": {"stream": 1, "replay": -1, "reads": -1},
        "under_way": {},
    }
    assert done.json["tables"]["silver_chess"] == 1
    assert done.json["totals"] == would.json["totals"]
    listed = cli("restore", tmp_path / "backup", "--list", "--json")
    assert [point["point"] for point in listed.json["points"]] == [done.json["point"]]
    file = elsewhere(live, tmp_path / "b")
    told = cli("restore", tmp_path / "backup", file, "--dry-run", "--json")
    assert (told.code, told.json["point"]) == (0, done.json["point"])
    assert not (tmp_path / "b" / "lake").exists()
    back = cli("restore", tmp_path / "backup", file, "--json")
    assert back.code == 0 and back.json["lake"] == str(tmp_path / "b" / "lake")
    assert back.json["checkpoints"] == {"games": str(tmp_path / "b/lake/_checkpoints/games")}
    assert_exact(live, tmp_path / "b" / "lake", finish(live, tmp_path / "b" / "lake"))
    again = cli("restore", tmp_path / "backup", file, "--json")
    assert (again.code, again.json["error"]["code"]) == (1, "RESTORE_REFUSED")


def test_a_lake_is_enough(cli: Cli, live: Live, tmp_path: Path) -> None:
    assert cli("backup", "--lake", live.lake, tmp_path / "backup").code == 0
    said = cli("backup", "--lake", live.lake, tmp_path / "backup")
    assert "games: up to batch 1" in said.out and "copied: 0 files" in said.out
    said = cli("restore", tmp_path / "backup", "--list")
    assert said.out.count("games 1") == 2
    assert cli("restore", tmp_path / "backup", "--lake", tmp_path / "b").code == 0
    assert_exact(live, tmp_path / "b", finish(live, tmp_path / "b"))


def test_what_is_missing_is_asked_for(cli: Cli, live: Live, tmp_path: Path) -> None:
    file = elsewhere(live, tmp_path / "b")
    for words in (
        ["backup", live.file],
        ["backup", tmp_path / "backup", live.file],
        ["backup", live.file, file, tmp_path / "backup"],
        ["restore", live.file, tmp_path / "backup"],
        ["restore", tmp_path / "backup"],
    ):
        assert cli(*words).code == 2
    assert not (tmp_path / "backup").exists()
    nothing = cli("restore", tmp_path / "backup", file, "--json")
    assert (nothing.code, nothing.json["error"]["code"]) == (1, "BACKUP_INVALID")
