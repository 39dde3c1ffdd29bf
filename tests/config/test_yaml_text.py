from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from distributary.config.file.document import to_yaml

TEXTS = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30),
    st.lists(st.text(alphabet="ab {}:#-|'\"\\\t%&*!", max_size=8), max_size=4).map("\n".join),
    st.sampled_from(
        ["yes", "on", "012", "22:30", "1e3", "\U00018d09", "~", "", "- a", "a\nb\n", "{{ x }}"]
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS.filter(bool), inner, max_size=4)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(TEXTS.filter(bool), VALUES, max_size=4) | st.lists(VALUES, max_size=4)


@given(DOCUMENTS)
def test_both_versions_of_yaml_read_it_back(document: Any) -> None:
    text = to_yaml(document)
    assert yaml.safe_load(text) == document
    assert YAML(typ="safe", pure=True).load(text) == document


@pytest.mark.parametrize("word", ["yes", "No", "on", "OFF", "null", "y", "012", "1.5", "0x1f"])
def test_texts_that_look_like_something_else_stay_texts(word: str) -> None:
    assert yaml.safe_load(to_yaml({"key": word, "list": [word]})) == {"key": word, "list": [word]}


def test_long_texts_stay_readable() -> None:
    assert to_yaml({"file": "a: 1\nb:\n  - c\n"}) == "file: |\n  a: 1\n  b:\n    - c\n"
