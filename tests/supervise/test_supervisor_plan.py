"""Files become pipelines, each judged for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.errors import ErrorCode
from distributary.supervise.supervisor import plan_of, run_command

TEXT = """
name: {name}
source: {{type: delta, path: {lake}/wrapper, value: wrapper}}
payload: {{format: json}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: {lake}}}
restart: {{max: 3}}
"""


def write(folder: Path, file: str, name: str, lake: str = "lake") -> Path:
    path = folder / file
    path.write_text(TEXT.format(name=name, lake=folder / lake))
    return path


def test_each_file_is_a_pipeline_with_its_own_limits(tmp_path: Path) -> None:
    files = [write(tmp_path, f"{n}.yaml", f"p{n}") for n in range(3)]
    plan = plan_of(files, run_command("--every", "10s"))
    assert [spec.name for spec in plan.specs] == ["p0", "p1", "p2"]
    assert {spec.restart.max for spec in plan.specs} == {3}
    assert plan.specs[0].command[-4:] == ("--every", "10s", "--", str(files[0]))


def test_a_file_that_is_wrong_is_refused_alone(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: [")
    files = [tmp_path / "bad.yaml", write(tmp_path, "a.yaml", "a"), tmp_path / "none.yaml"]
    bad, good, missing = plan_of(files, run_command()).specs
    assert good.refused is None
    assert bad.refused is not None and bad.refused.code is ErrorCode.CONFIG_SYNTAX
    assert missing.refused is not None and missing.refused.code is ErrorCode.CONFIG_UNREADABLE
    assert len({bad.name, good.name, missing.name}) == 3


@pytest.mark.parametrize(
    ("name", "lake", "refused"),
    [("a", "lake", True), ("a", "other", True), ("b", "lake", False), ("A", "lake", False)],
)
def test_a_name_stands_for_one_pipeline(
    tmp_path: Path, name: str, lake: str, refused: bool
) -> None:
    files = [write(tmp_path, "1.yaml", "a"), write(tmp_path, "2.yaml", name, lake)]
    first, second = plan_of(files, run_command()).specs
    assert first.refused is None
    assert (second.refused is not None) is refused


def test_one_file_twice_is_one_pipeline(tmp_path: Path) -> None:
    file = write(tmp_path, "1.yaml", "a")
    (tmp_path / "link.yaml").symlink_to(file)
    specs = plan_of([file, file, tmp_path / "link.yaml"], run_command()).specs
    assert [spec.refused is None for spec in specs] == [True, False, False]
    assert {spec.refused.code for spec in specs[1:] if spec.refused} == {ErrorCode.CONFIG_INVALID}


def test_secrets_of_all_of_them_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "hunter22")
    file = write(tmp_path, "1.yaml", "a")
    file.write_text(file.read_text() + "registry: {url: 'http://h', token: '${env:ONE}'}\n")
    plan = plan_of([file, write(tmp_path, "2.yaml", "b")], run_command())
    assert plan.specs[0].refused is None
    assert plan.mask("say hunter22") == plan.specs[0].mask("say hunter22") == "say ***"
    assert "hunter22" not in repr(plan)
