"""The same records for every case: many games, four versions of each in flight, shuffled."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from distributary_lab.simulate.base import SchemaSink
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds

VERSIONS = 4


class Games:
    """Messages of so many games, at least as many as asked for, and their schemas registered."""

    def __init__(self, *, games: int, records: int, registry: SchemaSink) -> None:
        per_version = -(-records // (games * VERSIONS))
        plan = GamesPlan(games=games, versions=VERSIONS, records=per_version, seed=1)
        rounds = [batch for one in stream_rounds(plan, registry=registry) for batch in one.arrow()]
        self._messages = pa.Table.from_batches(rounds)
        self._order = np.random.default_rng(1).permutation(self._messages.num_rows)
        self._plan = plan

    def shuffled(self, start: int, end: int) -> pa.Table:
        """Some of the messages, by their places in a shuffled stream of all."""
        return self._messages.take(pa.array(self._order[start:end])).combine_chunks()

    def one_of_each(self) -> pa.Table:
        """One record of every game and version: what a long-running pipeline has seen before."""
        size = self._plan.games * self._plan.records
        first = [v * size + game for v in range(VERSIONS) for game in range(self._plan.games)]
        return self._messages.take(pa.array(first)).combine_chunks()
