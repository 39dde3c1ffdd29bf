"""Which files that a lake names are loaded unasked."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from distributary.config.load import load
from distributary.errors import ConfigError
from distributary.observe import cards
from distributary.observe.cards import Registration, load_trusted, pin, trusted_checkpoint

FILE = """
name: games
source: {{type: delta, path: {lake}/bronze, value: value}}
registry: {{url: 'http://127.0.0.1:1', token: '${{env:TOKEN}}'}}
payload: {{format: json}}
tables: {{each: events}}
lake: {{path: {lake}}}
spark: {{conf: {{spark.password: '{secret}'}}}}
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TOKEN", "a token")
    return tmp_path / "state"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    found = tmp_path / "lake"
    found.mkdir()
    return found


@pytest.fixture
def file(tmp_path: Path, lake: Path) -> Path:
    return write(tmp_path / "games.yaml", lake)


def write(path: Path, lake: Path, *, secret: str = "${env:NOT_SET}") -> Path:
    path.write_text(FILE.format(lake=lake, secret=secret))
    return path


def run(lake: Path, file: Path, *, name: str = "games", checkpoint: Path | None = None) -> None:
    """What a run writes down."""
    sha256 = load(file, needs=()).sha256
    place = checkpoint or lake / "_checkpoints" / name
    pin(str(lake), name, file=file, sha256=sha256, checkpoint=str(place))


def card(lake: Path, file: Path | str, *, name: str = "games") -> Registration:
    return Registration(name, str(file), str(lake / "_checkpoints" / name))


def code(lake: Path, card: Registration) -> str | None:
    try:
        load_trusted(card, str(lake), needs=())
    except ConfigError as error:
        assert error.what and error.where and error.next_step
        return str(error.code)
    return None


def test_file_that_was_run_is_loaded(lake: Path, file: Path) -> None:
    assert code(lake, card(lake, file)) == "FILE_NOT_TRUSTED"
    run(lake, file)
    assert code(lake, card(lake, file)) is None
    # a second time, too
    assert code(lake, card(lake, file)) is None


def test_pins_are_for_their_user_alone(lake: Path, file: Path, state: Path) -> None:
    run(lake, file)
    (pinned,) = (state / "distributary" / "trusted").iterdir()
    assert stat.S_IMODE(pinned.stat().st_mode) == 0o600
    assert stat.S_IMODE(pinned.parent.stat().st_mode) == 0o700


def test_file_that_has_changed_is_refused_until_it_is_run(lake: Path, file: Path) -> None:
    run(lake, file)
    file.write_text(file.read_text() + "# another word\n")
    assert code(lake, card(lake, file)) == "FILE_NOT_TRUSTED"
    run(lake, file)
    assert code(lake, card(lake, file)) is None


def test_file_in_the_lake_counts_only_as_it_was_run(lake: Path) -> None:
    inside = write(lake / "games.yaml", lake)
    assert code(lake, card(lake, inside)) == "FILE_NOT_TRUSTED"
    run(lake, inside)
    assert code(lake, card(lake, inside)) is None
    inside.write_text(inside.read_text() + "# by somebody else\n")
    assert code(lake, card(lake, inside)) == "FILE_NOT_TRUSTED"


@pytest.mark.parametrize("name", ["games.yaml", "./games.yaml", "/x\0y", "~/games.yaml"])
def test_path_that_is_not_absolute_is_refused(
    lake: Path, file: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run(lake, file)
    monkeypatch.chdir(file.parent)
    assert code(lake, card(lake, name)) == "FILE_NOT_TRUSTED"


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_file_that_others_may_write_is_refused(lake: Path, file: Path, mode: int) -> None:
    run(lake, file)
    file.chmod(mode)
    assert code(lake, card(lake, file)) == "FILE_NOT_TRUSTED"


def test_file_of_another_user_is_refused(
    lake: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(lake, file)
    real = os.stat(file).st_uid
    theirs = os.stat_result((stat.S_IFREG | 0o644, 1, 1, 1, real + 4711, 0, 1, 0, 0, 0))
    given = os.stat
    monkeypatch.setattr(
        os, "stat", lambda p, **named: theirs if str(p) == str(file) else given(p, **named)
    )
    assert code(lake, card(lake, file)) == "FILE_NOT_TRUSTED"


def test_group_of_one_user_may_write(
    lake: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(lake, file)
    file.chmod(0o664)
    monkeypatch.setattr(cards, "_is_private", lambda group: True)
    assert code(lake, card(lake, file)) is None
    monkeypatch.setattr(cards, "_is_private", lambda group: False)
    assert code(lake, card(lake, file)) == "FILE_NOT_TRUSTED"


def test_pin_that_others_may_write_counts_for_nothing(lake: Path, file: Path, state: Path) -> None:
    run(lake, file)
    (pinned,) = (state / "distributary" / "trusted").iterdir()
    pinned.chmod(0o666)
    assert code(lake, card(lake, file)) == "FILE_NOT_TRUSTED"


def test_pins_in_the_lake_count_for_nothing(
    lake: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(lake / "state"))
    run(lake, file)
    assert code(lake, card(lake, file)) == "FILE_NOT_TRUSTED"


def test_link_is_followed_before_it_is_pinned(lake: Path, file: Path, tmp_path: Path) -> None:
    link, other = tmp_path / "link.yaml", write(tmp_path / "other.yaml", lake)
    link.symlink_to(file)
    run(lake, link)
    assert code(lake, card(lake, file)) is None
    assert code(lake, card(lake, link)) is None
    link.unlink()
    link.symlink_to(other)
    assert code(lake, card(lake, link)) == "FILE_NOT_TRUSTED"
    link.unlink()
    link.symlink_to(link)
    assert code(lake, card(lake, link)) == "NOT_FOUND"


def test_card_of_another_lake_or_name_cannot_use_the_pin(
    lake: Path, file: Path, tmp_path: Path
) -> None:
    run(lake, file)
    other = tmp_path / "other"
    other.mkdir()
    assert code(other, card(other, file)) == "FILE_NOT_TRUSTED"
    assert code(lake, card(lake, file, name="others")) == "FILE_NOT_TRUSTED"


def test_lake_is_the_same_however_it_is_spelled(lake: Path, file: Path, tmp_path: Path) -> None:
    run(lake, file)
    (tmp_path / "link").symlink_to(lake)
    for spelled in (f"{lake}/", f"file://{lake}", str(tmp_path / "link")):
        assert load_trusted(card(lake, file), spelled, needs=()).config.name == "games"


def test_file_that_is_gone_is_not_found(lake: Path, file: Path) -> None:
    run(lake, file)
    file.unlink()
    assert code(lake, card(lake, file)) == "NOT_FOUND"


def test_run_goes_on_where_no_pin_can_be_written(
    lake: Path, file: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.write_text("no folder")
    run(lake, file)
    assert code(lake, card(lake, file)) == "FILE_NOT_TRUSTED"


def test_secrets_that_nobody_needs_stay_references(lake: Path, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("a key")
    file = write(tmp_path / "games.yaml", lake, secret=f"${{file:{secret}}}")
    run(lake, file)
    found = load_trusted(card(lake, file), str(lake), needs=cards.DECODING)
    registry = found.config.registry
    assert registry is not None and registry.token is not None
    assert registry.token.get_secret_value() == "a token"
    assert "a key" not in found.secrets
    assert "a key" in load(file).secrets


def test_checkpoint_outside_of_the_lake_is_tidied_only_where_it_was_run(
    lake: Path, file: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "progress"
    outside.mkdir()
    named = Registration("games", str(file), str(outside))
    assert trusted_checkpoint(named, str(lake)) is None
    run(lake, file, checkpoint=outside)
    assert trusted_checkpoint(named, str(lake)) == outside
    inside = card(lake, file)
    assert trusted_checkpoint(inside, str(lake)) == Path(inside.checkpoint)
    outside.rmdir()
    outside.symlink_to(tmp_path)
    assert trusted_checkpoint(named, str(lake)) is None


def test_a_card_without_a_file_loads_nothing(lake: Path, file: Path) -> None:
    run(lake, file)
    assert code(lake, card(lake, "")) == "NOT_FOUND"
