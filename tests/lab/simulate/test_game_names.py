import re

import pytest

from distributary.model.names import check_type_name
from distributary_lab.simulate.dice import ANIMALS, GAMES, MOODS, game_names, user_names


@pytest.mark.parametrize("seed", [0, 1, 999])
def test_five_thousand_names_are_unique_and_safe(seed: int) -> None:
    names = game_names(5_000, seed=seed)
    assert len({name.casefold() for name in names}) == 5_000
    assert all(re.fullmatch(r"[a-z]+(_[a-z0-9]+)*_game", name) for name in names)
    assert max(map(len, names)) < 40
    assert not any(map(check_type_name, names))


def test_a_longer_list_begins_with_the_shorter_one() -> None:
    assert game_names(1_000, seed=5)[:10] == game_names(10, seed=5)


def test_another_seed_gives_other_games() -> None:
    assert game_names(5, seed=1) != game_names(5, seed=2)


def test_the_first_games_are_single_words() -> None:
    assert game_names(2, seed=999) == ("chess_game", "poker_game")
    assert {name.count("_") for name in game_names(len(GAMES), seed=3)} == {1}


@pytest.mark.parametrize("words", [GAMES, MOODS, ANIMALS])
def test_no_word_is_listed_twice(words: list[str]) -> None:
    assert len(set(words)) == len(words)


def test_players_are_unique() -> None:
    assert len(set(user_names())) == len(user_names()) > 2_000
