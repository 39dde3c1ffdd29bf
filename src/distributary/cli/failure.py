"""One block for everything that goes wrong: code, what, where, seen, next, docs, log."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING

from distributary.cli.logs import LogFile
from distributary.cli.output import Output, Paper, styled
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.observe.pages import Pages

if TYPE_CHECKING:
    from distributary.config.problems import Problem

PAGE_VARIABLE = "DISTRIBUTARY_UI"
"""Where the dashboard is, for those who want its pages named in errors."""
_LABEL = 6


def docs_of(code: str) -> str:
    """Where the documentation explains a code."""
    return f"docs/errors.md#{code}"


def page_of(code: str) -> str:
    """The same on the dashboard, where its address is known."""
    return Pages(os.environ.get(PAGE_VARIABLE)).error(code)


def report(output: Output, error: BaseException, log: LogFile) -> int:
    """Tell what happened and return the exit code."""
    known = error if isinstance(error, DistributaryError) else _unexpected(error)
    text = "".join(traceback.format_exception(error))
    if not isinstance(known, ConfigError):
        log.write(output.mask(f"ERROR {known.code}\n{text}"))
    if output.debug:
        output.margin.lines(output.mask(text))
    written = str(log.path) if log.is_written else ""
    details = {
        **_masked(output, known),
        "docs": docs_of(known.code),
        "page": page_of(known.code) or None,
        "log": written or None,
    }
    output.show_error(details, lambda paper: _draw(paper, known, written, output))
    return known.exit_code


def usage_error(message: str, *, command: str) -> ConfigError:
    """What the command line has that it should not have."""
    return ConfigError(message, where="command line", next_step=f"{command} --help")


def _unexpected(error: BaseException) -> DistributaryError:
    lines = str(error).strip().splitlines()
    return DistributaryError(
        f"a defect of distributary: {type(error).__name__}",
        code=ErrorCode.INTERNAL,
        evidence=lines[0][:500] if lines else "",
        next_step="report it with the log file; --debug shows the traceback here",
    )


def _masked(output: Output, error: DistributaryError) -> dict[str, object]:
    return {
        key: output.mask(value) if isinstance(value, str) else value
        for key, value in error.as_dict().items()
    }


def _draw(paper: Paper, error: DistributaryError, log: str, output: Output) -> None:
    # not by its class: that would import all of the configuration to tell any error
    problems: tuple[Problem, ...] = getattr(error, "problems", ())
    if problems:
        _draw_problems(paper, problems)
    else:
        paper.line(styled(error.code, "bold red"), f"  {output.mask(error.what)}")
        _row(paper, "where", output.mask(error.where))
        _row(paper, "seen", output.mask(error.evidence))
    _row(paper, "next", output.mask(error.next_step))
    _row(paper, "docs", docs_of(error.code))
    _row(paper, "page", page_of(error.code))
    _row(paper, "log", log)


def _draw_problems(paper: Paper, problems: Iterable[Problem]) -> None:
    for problem in problems:
        place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
        meant = f", did you mean {problem.suggestion}?" if problem.suggestion else ""
        about = f"{problem.path}  " if problem.path else ""
        paper.line(
            styled(place, "bold"),
            "  ",
            styled(problem.code, "bold red"),
            f"  {about}{problem.message}{meant}",
        )


def _row(paper: Paper, label: str, text: str) -> None:
    lines = text.splitlines()
    for i, line in enumerate(lines):
        paper.line(styled(f"  {label if i == 0 else '':{_LABEL}}", "dim"), line)
