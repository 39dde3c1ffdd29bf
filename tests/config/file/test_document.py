from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.file.document import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_LINE,
    PipelineFileError,
    Problem,
    parse,
    read,
)
from distributary.config.load import load
from distributary.errors import ErrorCode

SYNTAX, INVALID, UNREADABLE = (
    ErrorCode.CONFIG_SYNTAX,
    ErrorCode.CONFIG_INVALID,
    ErrorCode.CONFIG_UNREADABLE,
)


def refused(text: str) -> Problem:
    with pytest.raises(PipelineFileError) as caught:
        parse(text, file="p.yaml")
    return caught.value.problems[-1]


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("", INVALID, 1),
        ("# only a comment\n", INVALID, 1),
        ("---\n...\n", INVALID, 1),
        ("- a\n- b\n", INVALID, 1),
        ("just text\n", INVALID, 1),
        ("a: 1\n\tb: 2\n", SYNTAX, 2),
        ("a:\n  b: [1, 2\nc: 3\n", SYNTAX, 3),
        ("a: 'open\n", SYNTAX, 2),
        ("a: b: c\n", SYNTAX, 1),
        ("a: 1\n---\nb: 2\n", SYNTAX, 2),
        ("a: 1\nb: *nowhere\n", SYNTAX, 2),
        ("a: &a [*a]\n", SYNTAX, 1),
        ("a: 1\nb: !!python/object/apply:os.system ['true']\n", SYNTAX, 2),
        ("a: !custom x\n", SYNTAX, 1),
        ("? [a, b]\n: c\n", SYNTAX, 1),
        ("? {a: b}\n: c\n", SYNTAX, 1),
        ("~: c\n", SYNTAX, 1),
        ("a: \x07\n", SYNTAX, 1),
        ("%YAML 3.0\n---\na: b\n", SYNTAX, 1),
    ],
)
def test_text_that_is_no_pipeline_file(text: str, code: ErrorCode, line: int) -> None:
    problem = refused(text)
    assert (problem.code, problem.line) == (code, line)


@pytest.mark.parametrize(
    "text",
    [
        laughs(9),
        "a: " + "[" * 5000,
        "a: " + "{a: " * 5000,
        "- " * 5000,
        "a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "a:\n" + "- x\n" * 20_000,
        "a: " + "!" * (MAX_LINE + 1),
    ],
    ids=["laughs", "lists", "mappings", "blocks", "depth", "many", "long line"],
)
def test_text_made_to_exhaust_is_refused(text: str) -> None:
    assert refused(text).code is SYNTAX


def test_aliases_in_reason_are_allowed() -> None:
    tree, problems = parse("a: &list [x, y]\nb: *list\nc: *list\n", file="p.yaml")
    assert tree.plain() == {"a": ["x", "y"], "b": ["x", "y"], "c": ["x", "y"]}
    assert not problems


def test_scalars_are_text_and_nothing_is_none() -> None:
    text = "a: 1\nb: true\nc: 2026-01-31\nd:\ne: ~\nf: ''\ng: 'null'\nh: !!str 1\ni: 0x10\n"
    assert parse(text, file="p.yaml")[0].plain() == {
        "a": "1",
        "b": "true",
        "c": "2026-01-31",
        "d": None,
        "e": None,
        "f": "",
        "g": "null",
        "h": "1",
        "i": "0x10",
    }


def test_every_duplicate_key_is_reported_with_its_line() -> None:
    _, problems = parse("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", file="p.yaml")
    assert [(p.path, p.line, p.column, p.code) for p in problems] == [
        ("b.c", 4, 3, SYNTAX),
        ("a", 5, 1, SYNTAX),
    ]


def test_an_empty_value_is_placed_at_its_key() -> None:
    tree, _ = parse("a:\n\n\nb: 1\n", file="p.yaml")
    assert tree.entries["a"].origin.line == 1


@pytest.mark.parametrize("content", [b"\x00\x01\x02", b"\xff\xfea\x00", b"PK\x03\x04\x00\xff"])
def test_a_binary_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(content)
    with pytest.raises(PipelineFileError) as caught:
        load(path)
    assert caught.value.code is UNREADABLE


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    for path in (tmp_path, tmp_path / "none.yaml", large, "/dev/zero", "a\0b", "x" * 5000):
        with pytest.raises(PipelineFileError) as caught:
            load(path)
        assert caught.value.code is UNREADABLE
        assert caught.value.exit_code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: x")
    path.chmod(0)
    with pytest.raises(PipelineFileError) as caught:
        load(path)
    assert caught.value.code is UNREADABLE


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read(path)[0] == "name: x\n"


def test_names_that_a_terminal_would_obey_are_escaped(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError) as caught:
        load(tmp_path / "\x1b[31mred\n.yaml")
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_tree_or_a_problem(text: str) -> None:
    try:
        parse(text, file="p.yaml")
    except PipelineFileError as error:
        assert error.problems


@given(st.binary(max_size=60))
def test_any_text_after_a_good_start_is_a_tree_or_a_problem(tail: bytes) -> None:
    try:
        parse("name: x\nsource:\n  " + tail.decode("latin-1"), file="p.yaml")
    except PipelineFileError as error:
        assert error.problems
