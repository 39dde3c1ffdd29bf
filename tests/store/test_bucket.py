"""Addresses, and how to log in to what is below them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest

from distributary.errors import ConfigError
from distributary.store import bucket
from distributary.store.bucket import (
    UploadError,
    Uploads,
    file_system,
    introduce,
    is_remote,
    without_secrets,
)

SECRET = "canary-secret"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_OPTIONS", {})


@pytest.mark.parametrize(
    ("address", "remote"),
    [
        ("/lake", False),
        ("lake", False),
        ("file:///lake", False),
        ("file:/lake", False),
        ("s3://bucket/lake", True),
        ("gs://bucket", True),
        ("abfss://c@a.dfs.core.windows.net/lake", True),
    ],
)
def test_what_is_elsewhere(address: str, remote: bool) -> None:
    assert is_remote(address) is remote


def test_the_nearest_introduction_holds_and_only_below_it() -> None:
    introduce("s3://bucket/lake", {"aws_secret_access_key": SECRET})
    introduce("s3://bucket/lake/inner/", {"aws_secret_access_key": "inner-secret"})
    introduce("/folder", {"aws_secret_access_key": "nobody"})
    said = f"{SECRET} inner-secret"
    assert without_secrets(said, "s3://bucket/lake/chess") == "*** inner-secret"
    assert without_secrets(said, "s3://bucket/lake/inner/chess") == f"{SECRET} ***"
    assert without_secrets(said, "s3://bucket/lakes") == said
    assert without_secrets(said, "s3://other/lake") == said
    assert "/folder" not in bucket._OPTIONS


def test_paths_are_those_of_arrow(tmp_path: object) -> None:
    introduce("s3://bucket/lake", {"aws_region": "eu-central-1", "aws_skip_signature": "true"})
    system, path = file_system("s3://bucket/lake/chess/")
    assert isinstance(system, pa_fs.S3FileSystem)
    assert (system.region, path) == ("eu-central-1", "bucket/lake/chess")
    system, path = file_system(f"{tmp_path}/chess/")
    assert isinstance(system, pa_fs.LocalFileSystem)
    assert path == f"{tmp_path}/chess"


def test_an_address_of_nothing_known_is_refused() -> None:
    with pytest.raises(ConfigError):
        file_system("ftp://host/lake")


def test_many_files_at_once_and_a_failure_is_told_by_name(tmp_path: object) -> None:
    uploads = Uploads()
    for number in range(200):
        uploads.put(f"{tmp_path}/{number}", pa.py_buffer(b"x" * number))
    uploads.finish()
    system, path = file_system(str(tmp_path))
    sizes = sorted(info.size for info in system.get_file_info(pa_fs.FileSelector(path)))
    assert sizes == list(range(200))
    uploads.put(f"{tmp_path}/no-such-folder/x", pa.py_buffer(b"x"))
    with pytest.raises(UploadError, match="no-such-folder/x: "):
        uploads.finish()
    for _ in range(3):
        uploads.put(f"{tmp_path}/no-such-folder/x", pa.py_buffer(b"x"))
    uploads.forget()
    # the next task begins with nothing
    uploads.finish()
