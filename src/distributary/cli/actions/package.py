"""`package`: the Python packages of this environment as one file, or Distributary as a wheel."""

from __future__ import annotations

from pathlib import Path

from distributary.cli.output import Paper
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, size
from distributary.deploy.package import contents, pack, packages
from distributary.deploy.wheel import WHEEL, wheel_contents, write_wheel
from distributary.errors import ConfigError

# of an archive with another name, Spark unpacks no rights: its Python could not be started
_ENDINGS = (".tar.gz", ".tgz")


def package_environment(call: Invocation, out: Path, *, dry_run: bool) -> int:
    """Write the archive or the wheel; with `dry_run` only say what would be in it."""
    wheel = out.suffix == ".whl"
    if wheel and out.name != WHEEL:
        raise ConfigError(
            "pip takes a wheel by its own name only",
            where=str(out),
            next_step=f"name it {WHEEL}",
        )
    if not wheel and not out.name.endswith(_ENDINGS):
        raise ConfigError(
            "Spark unpacks archives by the end of their names",
            where=str(out),
            next_step=f"name it with .tar.gz at its end, or {WHEEL} for an image",
        )
    if dry_run:
        found = wheel_contents() if wheel else contents()
        names = ("distributary",) if wheel else packages()
        files, held = len(found), sum(p.stat().st_size for p in found.values())
    else:
        if not wheel:
            call.out.note("packing; this takes a minute")
        done = write_wheel(out) if wheel else pack(out)
        names, files, held = done.packages, done.files, done.bytes
    data = {
        "path": str(out),
        "dry_run": dry_run,
        "packages": list(names),
        "files": files,
        "bytes": held,
    }
    what = f"{counted(len(names), 'package')}, {counted(files, 'file')}, {size(held)}"
    call.out.show(data, lambda paper: _draw(paper, out, what, dry_run=dry_run))
    return 0


def _draw(paper: Paper, out: Path, what: str, *, dry_run: bool) -> None:
    paper.line(f"would pack {what} before compression" if dry_run else f"{out}: {what}")
