from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distributary.deploy.file_targets import InstallStep, StepAction, marked, read_mark

BODIES = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200),
    st.lists(st.text(max_size=20), max_size=5).map(lambda lines: "\n".join(lines) + "\n"),
    st.sampled_from(["#!/bin/sh\necho\n", '{\n  "a": 1\n}\n', "", "\n", "a: 1"]),
)


@given(BODIES)
def test_a_marked_text_is_known_again(body: str) -> None:
    mark = read_mark(marked(body, target="systemd", pipeline="games"))
    assert mark is not None
    assert (mark.target, mark.pipeline, mark.intact) == ("systemd", "games", True)


@given(BODIES, st.text(min_size=1, max_size=5))
def test_an_edit_is_noticed(body: str, more: str) -> None:
    mark = read_mark(marked(body, target="systemd", pipeline="games") + more)
    assert mark is None or not mark.intact


def test_what_must_come_first_comes_first() -> None:
    script = marked("#!/bin/sh\necho\n", target="spark-submit", pipeline="games")
    assert script.startswith("#!/bin/sh\n# made by distributary")
    assert '"$comment": "made by distributary' in marked(
        '{\n  "a": 1\n}\n', target="x", pipeline="g"
    )


def test_a_text_of_others_has_no_mark() -> None:
    assert read_mark("[Unit]\nDescription=mine\n") is None
    assert read_mark("") is None


def test_secrets_that_others_put_there_are_not_shown() -> None:
    secrets = "Environment=KAFKA_SECRET=canary\npassword: canary\nTOKEN: '{{secrets/a/b}}'\n"
    before = f"{secrets}Description=a\n"
    diff = InstallStep(
        "file", "x", StepAction.EDITED, after="Description=b\n", before=before
    ).diff()
    assert "canary" not in diff
    assert "{{secrets/a/b}}" in diff
    assert "-Description=a" in diff and "+Description=b" in diff
