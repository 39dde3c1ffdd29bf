"""Compiled schemas for the decoders' tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc_tools
import pytest
from grpc_tools import protoc

Compile = Callable[[str], bytes]


@cache
def _descriptor_set(text: str) -> bytes:
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with TemporaryDirectory() as folder:
        out = Path(folder, "set")
        Path(folder, "schema.proto").write_text(text, encoding="utf-8")
        arguments = [
            "protoc",
            f"-I{folder}",
            f"-I{well_known}",
            "--include_imports",
            f"--descriptor_set_out={out}",
            "schema.proto",
        ]
        assert protoc.main(arguments) == 0
        return out.read_bytes()


@pytest.fixture(scope="session")
def compiled() -> Compile:
    """Compiles the text of a .proto file to a FileDescriptorSet."""
    return _descriptor_set
