"""Where a change stands in its source's log: every database counts in its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from distributary.simulate.cdc.chance import Dice
from distributary.simulate.cdc.plan import CdcPlan, Feature, SourceType


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log."""

    numbers: tuple[int, int, int]
    """The place as numbers: the order of the source is theirs."""
    told: dict[str, Any]
    """The same as the fields in which the source tells it."""


class Log(ABC):
    """A log that only grows."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._transaction = 7_000

    def begin(self) -> None:
        """Changes that follow belong to another transaction."""
        self._transaction += 1 + self._dice.below(5)

    @abstractmethod
    def next(self) -> Position:
        """The place of the next change."""

    def snapshot(self, number: int) -> Position:
        """What the rows of a backfill say in place of a position; backfills count from 0."""
        return Position((0, 0, 0), {})

    def roll_over(self) -> None:
        """Go on in another file, where the log has files."""
        return None


class BinLog(Log):
    """MySQL: numbered files, and bytes in them. Above 999999, the number has one digit more."""

    def __init__(self, dice: Dice, *, first_file: int) -> None:
        super().__init__(dice)
        self._file = first_file
        self._byte = 157

    def next(self) -> Position:
        """Some hundred bytes further on."""
        self._byte += 200 + self._dice.below(700)
        told = {"log_file": f"mysql-bin.{self._file:06}", "log_position": self._byte}
        return Position((self._file, self._byte, 0), told)

    def snapshot(self, number: int) -> Position:
        """An empty name; in some files, null."""
        told = {"log_file": "", "log_position": 0}
        return Position((0, 0, 0), dict.fromkeys(told) if number % 2 else told)

    def roll_over(self) -> None:
        """The next file begins at its first byte."""
        self._file += 1
        self._byte = 157


class WriteAheadLog(Log):
    """PostgreSQL: one number, written as two in hexadecimal: `16/2A50F3`."""

    def __init__(self, dice: Dice) -> None:
        super().__init__(dice)
        # close to the end of the lower half: as texts, F/FFFFFF00 and 10/1A0 sort the wrong way
        self._byte = (0x0F << 32) + 0xFFFF_0000

    def next(self) -> Position:
        """Some bytes further on."""
        self._byte += 0x40 + self._dice.below(0x400)
        told = {"lsn": f"{self._byte >> 32:X}/{self._byte & 0xFFFF_FFFF:X}"}
        return Position((self._byte, 0, 0), told | {"tx_id": self._transaction})


class RedoLog(Log):
    """Oracle: the SCN of a transaction, then the record in the redo log, then the row in it."""

    def __init__(self, dice: Dice) -> None:
        super().__init__(dice)
        self._scn = 1_706_664
        self._sequence, self._block, self._offset, self._row = 0x0073, 0x0A4E4C, 0x10, 0

    def begin(self) -> None:
        """Another SCN."""
        super().begin()
        self._scn += 1 + self._dice.below(40)

    def next(self) -> Position:
        """Another row of the same record, or another record."""
        if self._dice.chance(0.3):
            self._row += 1
        else:
            self._row = 0
            self._offset += 0x10 + self._dice.below(0x800)
            self._block += self._offset >> 16
            self._offset &= 0xFFFF
        numbers = (self._scn, self._place, self._row)
        record = f"0x{self._sequence:06x}.{self._block:08x}.{self._offset:04x}"
        told = {"scn": self._scn, "ssn": self._row, "rs_id": record}
        return Position(numbers, told | {"tx_id": f"{self._transaction:016x}"})

    def snapshot(self, number: int) -> Position:
        """The SCN as of which the rows were read."""
        return Position((self._scn, 0, 0), {"scn": self._scn, "ssn": 0, "rs_id": ""})

    @property
    def _place(self) -> int:
        return self._sequence << 48 | self._block << 16 | self._offset


class TransactionLog(Log):
    """SQL Server: file, block and slot in hexadecimal, `00000025:00000728:0003`."""

    def __init__(self, dice: Dice) -> None:
        super().__init__(dice)
        self._file, self._block, self._slot = 0x25, 0x728, 0

    def next(self) -> Position:
        """Another slot, or another block."""
        self._slot += 1 + self._dice.below(3)
        if self._slot > 0x20:
            self._slot = 1
            self._block += 8 + self._dice.below(0x100)
        if self._block > 0xFFFF:
            self._file, self._block = self._file + 1, 0x10
        lsn = f"{self._file:08x}:{self._block:08x}:{self._slot:04x}"
        numbers = (self._file, self._block, self._slot)
        return Position(numbers, {"lsn": lsn, "tx_id": str(self._transaction)})


def open_log(plan: CdcPlan) -> Log:
    """The log of the plan's database."""
    dice = Dice(plan.seed, "log")
    match plan.source_type:
        case SourceType.MYSQL:
            return BinLog(dice, first_file=999_999 if plan.has(Feature.LOG_ROLLOVER) else 131)
        case SourceType.POSTGRESQL:
            return WriteAheadLog(dice)
        case SourceType.ORACLE:
            return RedoLog(dice)
        case SourceType.SQLSERVER:
            return TransactionLog(dice)
