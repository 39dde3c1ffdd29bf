from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.file.variables import MAX_SECRET_BYTES, Variables, databricks_secrets

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)
plain = st.text(st.characters(exclude_characters="$", exclude_categories=["Cs"]), max_size=20)
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def expand(text: str, **environ: str) -> str:
    result = Variables(environ).expand(text)
    assert not result.unresolved
    return result.text


@given(anything)
def test_escaped_text_comes_back_as_it_was(text: str) -> None:
    assert expand(text.replace("${", "$${")) == text


@given(names, st.text(st.characters(exclude_categories=["Cs"]), min_size=1), plain, plain)
def test_a_value_is_put_in_place_and_never_expanded_again(
    name: str, value: str, before: str, after: str
) -> None:
    result = Variables({name: value}).expand(f"{before}${{env:{name}}}{after}")
    assert result.text == f"{before}{value}{after}"
    assert result.references == [f"env:{name}"]
    assert not result.secrets


@given(names, plain.filter(lambda t: "{" not in t and "}" not in t))
def test_a_default_stands_in_for_nothing_and_for_empty(name: str, default: str) -> None:
    for environ in ({}, {name: ""}):
        result = Variables(environ).expand(f"${{env:{name}:-{default}}}")
        assert result.text == default
        assert not result.unresolved


@given(anything)
def test_any_text_is_expanded_or_refused_without_a_crash(text: str) -> None:
    result = Variables({"A": "1"}).expand(f"${{{text}")
    assert result.unresolved or isinstance(result.text, str)


def test_defaults_may_hold_braces_and_variables() -> None:
    assert expand("${env:EACH:-silver_{type}}") == "silver_{type}"
    assert expand("${env:EACH:-silver_{type}}", EACH="x") == "x"
    assert expand("${env:A:-${env:B:-c}}") == "c"
    assert expand("${env:A:-${env:B:-c}}", B="b") == "b"
    assert expand("every ${env:N:-1}m") == "every 1m"


def test_every_missing_variable_is_named_with_the_nearest_that_exists() -> None:
    result = Variables({"KAFKA_SERVER": "canary"}).expand("${env:KAFKA_SEVER}/${env:ZZZ}")
    first, second = result.unresolved
    assert "KAFKA_SEVER" in first.what
    assert first.context["suggestion"] == "KAFKA_SERVER"
    assert "ZZZ" in second.what
    assert "canary" not in f"{first}{second}"


@pytest.mark.parametrize(
    "text",
    [
        "${",
        "${env:A",
        "${env:}",
        "${env:1}",
        "${env:A B}",
        "${}",
        "${HOME}",
        "${vault:a}",
        "${databricks:scope}",
        "${databricks:scope/key}",
        "${file:}",
        "${env:A:-" * 10 + "}" * 10,
    ],
)
def test_what_is_not_a_reference_is_refused(text: str) -> None:
    assert Variables({}).expand(text).unresolved


def test_a_shell_variable_is_taken_for_what_was_meant() -> None:
    (problem,) = Variables({}).expand("${HOME}").unresolved
    assert problem.context["suggestion"] == "${env:HOME}"


def test_a_file_is_read_without_its_last_line_break_and_is_secret(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("canary\n")
    for text in (f"${{file:{tmp_path}/password}}", "${file:${env:DIR}/password}"):
        result = Variables({"DIR": str(tmp_path)}).expand(f"<{text}>")
        assert result.text == "<canary>"
        assert result.secrets == ["canary"]


def test_a_path_made_of_a_secret_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("canary")
    text = f"${{file:${{file:{tmp_path}/s}}}} ${{file:${{env:S}}}} ${{file:${{env:GONE}}/x}}"
    result = Variables({"S": "canary"}).expand(text)
    assert len(result.unresolved) == 3
    assert "canary" not in f"{result.unresolved}{result.references}"


def test_files_that_cannot_be_secrets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    for path in (tmp_path, tmp_path / "binary", tmp_path / "large", tmp_path / "none", os.devnull):
        assert Variables({}).expand(f"${{file:{path}}}").unresolved
    assert Variables({}).expand("${file:a\0b}").unresolved


def test_databricks_secrets_come_from_a_given_lookup() -> None:
    result = Variables({}, lambda scope, key: f"{scope}+{key}").expand("${databricks:s/k}")
    assert result.text == "s+k"
    assert result.secrets == ["s+k"]


def test_databricks_secrets_come_from_its_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*, scope: str, key: str) -> str:
        if key != "k":
            raise KeyError("canary")
        return f"{scope}/{key}"

    runtime = SimpleNamespace(dbutils=SimpleNamespace(secrets=SimpleNamespace(get=get)))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    environ = {"DATABRICKS_RUNTIME_VERSION": "17"}
    assert databricks_secrets({}) is None
    assert Variables(environ).expand("${databricks:s/k}").text == "s/k"
    (problem,) = Variables(environ).expand("${databricks:s/other}").unresolved
    assert "canary" not in str(problem)


def test_a_runtime_without_credentials_is_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", None)
    assert databricks_secrets({"DATABRICKS_HOST": "x"}) is None
