"""From files to pipelines that can be run side by side, each file judged for itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distributary.config.load import Loaded, load
from distributary.config.problems import printable
from distributary.errors import ConfigError, DistributaryError
from distributary.supervise.member import Spec

Command = Callable[[Path], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Pipelines, and the settings of those whose file is right."""

    specs: tuple[Spec, ...]
    loaded: tuple[Loaded, ...] = field(repr=False)

    def mask(self, text: str) -> str:
        """A text without the secrets of any of them."""
        for each in self.loaded:
            text = each.mask(text)
        return text


def own_command(*words: str) -> tuple[str, ...]:
    """A command of ours, as a process."""
    # -P: the working folder is no place to import from
    return (sys.executable, "-P", "-m", "distributary", *words)


def run_command(*options: str) -> Command:
    """The command that runs a pipeline, with its words for programs."""
    spoken = ("--json", "--log-format", "json")
    return lambda file: own_command("run", *spoken, *options, "--", str(file))


def plan_of(files: Sequence[Path], command: Command) -> Plan:
    """One pipeline for each file; what is wrong with a file is the matter of that file only."""
    seen: dict[str, Path] = {}
    specs: list[Spec] = []
    loaded: list[Loaded] = []
    for file in files:
        try:
            found = load(file)
            _once(found, file, seen)
        except DistributaryError as error:
            specs.append(Spec(_free_name(file, specs), str(file), (), refused=error))
            continue
        config = found.config
        loaded.append(found)
        specs.append(Spec(config.name, str(file), command(file), config.restart, found.mask))
    return Plan(tuple(specs), tuple(loaded))


def _once(found: Loaded, file: Path, seen: dict[str, Path]) -> None:
    """A name stands for one checkpoint in a lake, and for one pipeline in logs and metrics."""
    name = found.config.name
    if name in seen:
        raise ConfigError(
            f"two files are about a pipeline named {name}",
            where=printable(str(file)),
            evidence=f"the other one is {printable(str(seen[name]))}",
            next_step="give each pipeline a name of its own, and each file once",
        )
    seen[name] = file


def _free_name(file: Path, specs: Sequence[Spec]) -> str:
    """What a pipeline is called whose own name is not known, or taken."""
    return f"{printable(file.name)}#{len(specs) + 1}"
