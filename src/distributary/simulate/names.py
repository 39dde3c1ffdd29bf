"""Readable names for games and players, as many as are asked for, none of them twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from distributary.simulate.dice import sample, seed_for

GAMES = (
    "asteroid checkers backgammon robot wizard spades euchre polo bridge solitaire domino mahjong "
    "go shogi cribbage canasta whist tarot darts bowling billiards snooker croquet hockey soccer "
    "tennis golf cricket rugby hearts curling archery fencing boxing sumo judo rowing sailing "
    "surfing skating skiing racing rally karting puzzle maze trivia hangman bingo lotto roulette "
    "blackjack baccarat pinball chess dungeon kingdom pirate dragon rummy galaxy poker castle"
).split()

MOODS = (
    "amber ancient arctic autumn blazing brave bright bronze calm clever copper cosmic crimson "
    "crystal daring desert electric emerald endless epic fierce frozen gentle giant golden grand "
    "hidden iron ivory jade jolly lucky lunar magic mighty misty neon noble northern quiet rapid "
    "royal ruby rustic scarlet secret silent silver solar stormy swift tiny velvet wild winter"
).split()

ANIMALS = (
    "badger beaver bison crane dingo eagle falcon ferret finch fox gecko heron ibis jackal koala "
    "lemur lynx marten mole moose newt ocelot otter owl panda puffin quail raven robin salmon seal "
    "stoat swan tapir tiger toad viper walrus wombat yak"
).split()


def game_names(how_many: int, *, seed: int) -> tuple[str, ...]:
    """`chess_game`, later `royal_chess_game`, at last `royal_chess_2_game`.

    A longer list of the same seed begins with the shorter one.
    """
    return tuple(islice(_game_names(seed), how_many))


def _game_names(seed: int) -> Iterator[str]:
    for i in sample(seed_for(seed, "games"), len(GAMES), len(GAMES)):
        yield f"{GAMES[i]}_game"
    pairs = [f"{mood}_{game}" for mood in MOODS for game in GAMES]
    order = sample(seed_for(seed, "pairs"), len(pairs), len(pairs))
    for i in order:
        yield f"{pairs[i]}_game"
    for number in count(2):
        for i in order:
            yield f"{pairs[i]}_{number}_game"


def user_names() -> tuple[str, ...]:
    """The players: `amber_otter`, some 2,000 of them, the same for every seed."""
    return tuple(f"{mood}_{animal}" for mood in MOODS for animal in ANIMALS)
