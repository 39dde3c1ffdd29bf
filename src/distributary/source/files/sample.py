"""Events of the first and the last file of a folder, for `init`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from distributary.model.deadletter import FAULT_HEADER, REASON_HEADER
from distributary.source.files.csv_files import Dialect
from distributary.source.files.csv_guess import guess_dialect
from distributary.source.files.file_bytes import (
    BucketFiles,
    FileFaultError,
    Files,
    Patience,
    PlainBytes,
    content_of,
)
from distributary.source.files.file_list import FileFilter, FoundFile, ListedFile, Walk
from distributary.source.files.source import FilesReader, files_at
from distributary.source.source_sample import MOST_RECORDS, Sample, records_of, unclear

_MOST_FILES = 20_000
"""Of a folder, that are looked at by name."""
_MAX_UNPACKED = 64 << 20
_BEGINNING = 64 << 10
"""The bytes of a CSV file that show its form."""
_FORMATS = {
    "avro": "avro",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "csv": "csv",
}


def sample_files(root: str, options: Mapping[str, str]) -> Sample:
    """Sample the first and the last file; keys are the tables that events name."""
    files = files_at(root, options)
    walk = files if isinstance(files, BucketFiles) else Walk(files.root)
    listed = list(islice(walk.files(), _MOST_FILES))
    formats = Counter(filter(None, map(_format, listed)))
    if not formats:
        raise unclear(
            "no file here is Avro, JSON, Parquet or CSV",
            looked_at=f"{len(listed):,} files below {root}",
            evidence=", ".join(sorted(file.path for file in listed[:5]))[:300] or "no file",
            next_step="name the folder in which each table has a folder of its own",
        )
    ((format_, count),) = formats.most_common(1)
    wanted = FileFilter(format_)
    fitting = sorted((f for f in listed if wanted(f)), key=lambda file: file.path)
    ends = fitting[:1] + fitting[1:][-1:]
    records, faults = [], []
    form = _csv_form(files, fitting[0].path) if format_ == "csv" else Dialect()
    with TemporaryDirectory(prefix="distributary-init-") as schemas:
        tasks = [
            [
                ListedFile(number, file.path, file.size, file.modified_ns, 0)
                for number, file in enumerate(ends)
            ]
        ]
        reader = FilesReader(
            files,
            format_,
            schemas,
            settle_seconds=0,
            tasks=tasks,
            max_unpacked_bytes=_MAX_UNPACKED,
            csv=form,
        )
        for batch in reader(iter([pa.record_batch({"task": [0]})])):
            for record in islice(records_of(batch), MOST_RECORDS):
                named = dict(record.headers)
                if FAULT_HEADER in named:
                    faults.append((named.get(REASON_HEADER) or b"").decode("utf-8", "replace"))
                else:
                    records.append(record)
            if len(records) >= MOST_RECORDS:
                break
    what = f"{len(records):,} events in {len(ends)} of {count:,} {format_} files below {root}"
    topic = root.rstrip("/").rpartition("/")[2] or "files"
    settings = {"format": format_, **_csv_settings(form)}
    return Sample(topic, tuple(records), what, settings, tuple(faults))


def _csv_form(files: Files, path: str) -> Dialect:
    """Return the form of a CSV file by its beginning; the usual one if it cannot be read."""
    try:
        plain = PlainBytes(files, path, Patience(0))
        try:
            beginning = content_of(plain, _MAX_UNPACKED).read(_BEGINNING)
        finally:
            plain.close()
    except (FileFaultError, OSError):
        return Dialect()
    # a character may be cut off at the end, and other encodings are no matter of the form
    return guess_dialect(beginning.decode("utf-8-sig", "ignore"), Dialect())


def _csv_settings(form: Dialect) -> dict[str, Any]:
    """Return the settings of a form that differ from the usual ones."""
    usual = Dialect()
    found = {"csv_header": form.header, "csv_delimiter": form.delimiter}
    defaults = {"csv_header": usual.header, "csv_delimiter": usual.delimiter}
    return {name: value for name, value in found.items() if value != defaults[name]}


def _format(file: FoundFile) -> str | None:
    suffixes = file.path.lower().rpartition("/")[2].removesuffix(".gz").rpartition(".")
    return _FORMATS.get(suffixes[2]) if suffixes[1] and file.size > 0 else None
