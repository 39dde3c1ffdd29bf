"""A package imports a name when the name is used, and not before."""

from __future__ import annotations

import sys

import pytest

from distributary.lazy_names import imported_on_use


def test_a_name_comes_from_its_module_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    get = imported_on_use("colours", {"rgb_to_hsv": "colorsys"})
    assert "colorsys" not in sys.modules
    assert get("rgb_to_hsv") is sys.modules["colorsys"].rgb_to_hsv


def test_other_names_are_missing_attributes() -> None:
    get = imported_on_use("colours", {"rgb_to_hsv": "colorsys"})
    with pytest.raises(AttributeError, match="module 'colours' has no attribute 'hsv'"):
        get("hsv")
