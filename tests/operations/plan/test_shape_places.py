"""`plan` names the place of a setting of `shape` that does not fit the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary import Pipeline
from distributary.operations.plan.shape_places import setting_place
from distributary.operations.plan.trial_registry import preview

FILE = """\
name: shop
source: {type: files, path: ./in, format: json, settle: 0s}
tables: {each: "silver_{type}"}
shape:
  - types: [orders]
    where: "id > 0"
    set:
      cents: "amuont * 100"
  - types: [users]
    where: >-
      lower(id) = 'x'
lake: {path: ./lake}
"""


def test_plan_names_line_and_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, line in (("orders", '{"id": 1, "amount": 2.5}\n'), ("users", '{"id": 1}\n')):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "a.json").write_text(line)
    (tmp_path / "shop.yaml").write_text(FILE)
    pipeline = Pipeline.load("shop.yaml")
    found = preview(pipeline)
    (limited,) = found.limited_shapes
    assert (limited.setting, limited.place) == ("set.cents", "shop.yaml:8:14")
    assert limited.why == "not applied, no column amuont, did you mean amount?"
    (refused,) = found.refused_shapes
    assert (refused.setting, refused.type, refused.place) == ("where", "users", "shop.yaml:10:12")
    assert "lower" in refused.why
    assert found.as_dict()["refused_shapes"][0]["place"] == "shop.yaml:10:12"
    assert setting_place(pipeline.loaded, "where", type_name="orders") == "shop.yaml:6:12"
    assert setting_place(pipeline.loaded, "where", type_name="others") == ""
    assert setting_place(pipeline.loaded, "explode") == ""
