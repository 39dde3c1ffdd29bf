"""Compiles `.proto` text inside the process: no protoc binary, no path from outside.

Every file is written under a name that was checked first into a private folder that lives as long
as one compilation, and the compiler looks nowhere else, so an import cannot reach this machine.

The compiler is entered through grpcio-tools' `get_protos`, which gives its findings as values with
line and column. `protoc.main` would print them to the process's stderr, where they could only be
caught by redirecting a descriptor that every other thread and child process shares.
"""

from __future__ import annotations

import ast
import re
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from google.protobuf.descriptor_pb2 import FileDescriptorProto as File
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import _protoc_compiler

from distributary.errors import ErrorCode, InvalidSchemaError, SetupError
from distributary.registry import serialized
from distributary.registry.bundled import bundled_for, google_protobuf_folder, is_bundled
from distributary.registry.hostile import printable

MAX_TEXT = 1024 * 1024
"""The longest schema text: what a broker accepts by default for the registry's own topic."""
MAX_FILES = 1000
"""The most files that one schema may pull in."""

_NO_IMPORTS: Mapping[str, str] = MappingProxyType({})
_SEGMENT = re.compile(r"\w(?:[\w.+@=~ -]{0,198}[\w+@=~-])?")
_OPENING = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*(syntax\b|edition\b)?", re.DOTALL)
_DEFAULT_SYNTAX = 'syntax = "proto2"; '
_DESCRIPTOR = re.compile(rb"^ *DESCRIPTOR = .*AddSerializedFile\((b'.*')\)$", re.MULTILINE)
_LOCK = threading.Lock()


class Finding(Protocol):
    """What the compiler says about one place; counts from 0, line -1 is the whole file."""

    filename: bytes
    line: int
    column: int
    message: bytes


@dataclass(frozen=True, slots=True)
class CompiledProto:
    """A compiled schema."""

    descriptor_set: bytes
    """A serialized FileDescriptorSet, dependencies first, the schema's own file last."""
    messages: tuple[str, ...]
    """Full names of the top-level messages of the schema's own file, in file order."""

    @property
    def message(self) -> str:
        """The first of them; empty when the file declares none."""
        return self.messages[0] if self.messages else ""


def compile_proto(
    text: str, *, name: str = "schema.proto", imports: Mapping[str, str] = _NO_IMPORTS
) -> CompiledProto:
    """Compile a schema, proto2, proto3 or an edition; no `syntax` line means proto2.

    Args:
        text: The schema: `.proto` text, or a base64 FileDescriptorProto.
        name: What the schema's own file is called in errors and in the descriptor set.
        imports: What its imports, and theirs, contain, by the name they are imported under. Well
            known and Confluent types are bundled and take precedence.

    Raises:
        InvalidSchemaError: With the compiler's findings as `file:line:column` in its evidence.
    """
    while name in imports:
        name = f"_{name}"
    given = {key: value for key, value in imports.items() if not is_bundled(key)}
    if len(given) > MAX_FILES:
        raise _invalid(name, f"{len(given)} imports", "imports too many files")
    for file, content in [(name, text), *given.items()]:
        _check_name(file)
        if len(content) > MAX_TEXT:
            raise _invalid(file, f"{len(content)} characters", f"is longer than {MAX_TEXT}")
    return _compile(name, text, tuple(sorted(given.items())))


@lru_cache(maxsize=8192)
def _compile(name: str, text: str, imports: tuple[tuple[str, str], ...]) -> CompiledProto:
    sources = {**dict(imports), name: text}
    ready = serialized.descriptors_in(sources)
    texts = {key: value for key, value in sources.items() if key not in ready}
    if not ready:
        files = _run(name, texts)
    elif not texts:
        files = serialized.link(name, ready=ready, bundled=_bundled)
    else:
        with tempfile.TemporaryDirectory(prefix="distributary-proto-") as folder:
            mentioned = [*texts.values(), *(d for f in ready.values() for d in f.dependency)]
            _write(Path(folder), {**bundled_for(mentioned), **texts})
            files = serialized.compile_with(ready, name=name, folder=Path(folder))
    last = files[-1]
    prefix = f"{last.package}." if last.package else ""
    return CompiledProto(
        descriptor_set=FileDescriptorSet(file=files).SerializeToString(),
        messages=tuple(prefix + message.name for message in last.message_type),
    )


def _bundled(name: str) -> list[File]:
    """A bundled file behind the files that it imports; empty when it is not bundled."""
    return _run(name, bundled_for([name])) if is_bundled(name) else []


def _run(name: str, texts: Mapping[str, str]) -> list[File]:
    include = str(google_protobuf_folder())
    with tempfile.TemporaryDirectory(prefix="distributary-proto-") as folder:
        shifted = _write(Path(folder), {**bundled_for(texts.values()), **texts})
        try:
            with _LOCK:
                generated = _protoc_compiler.get_protos(
                    name.encode(), [folder.encode(), include.encode()]
                )
        except _protoc_compiler.ProtocErrors as error:
            raise _findings(name, error.args[0], shifted) from None
    return [_descriptor(code) for _, code in generated]


def _descriptor(code: bytes) -> File:
    """The descriptor out of the Python module that the compiler made; nothing is executed."""
    found = _DESCRIPTOR.search(code)
    if found is None:
        raise SetupError(
            "the installed grpcio-tools does not give descriptors in the known form",
            code=ErrorCode.EXTRA_MISSING,
            where="grpc_tools",
            next_step="install the version of grpcio-tools that this package asks for",
        )
    return File.FromString(ast.literal_eval(found[1].decode("ascii")))


def _write(root: Path, texts: Mapping[str, str]) -> set[str]:
    """Write the files; gives those whose first line was pushed right by a syntax declaration."""
    shifted = set()
    for name, text in texts.items():
        text = text.removeprefix("\ufeff")
        opening = _OPENING.match(text)
        if opening is None or opening[1] is None:
            # said aloud, because the compiler logs to stderr when it has to assume it
            text = _DEFAULT_SYNTAX + text
            shifted.add(name)
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # exclusive: on a file system that ignores case, two names must not share one file
            with path.open("x", encoding="utf-8", errors="surrogatepass", newline="") as file:
                file.write(text)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise _invalid(name, "another import has it as file or folder", "clashes") from None
    return shifted


def _check_name(name: str) -> None:
    segments = name.split("/")
    if len(name) > 1000 or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise InvalidSchemaError(
            "an import is not a plain relative name",
            where=printable(f'import "{name}"'),
            evidence="allowed are letters, digits and ._+@=~- between single slashes",
            next_step="rename the import, and the reference with it",
        )


def _findings(name: str, errors: list[Finding], shifted: set[str]) -> InvalidSchemaError:
    lines = []
    for error in errors[:3]:
        file = error.filename.decode(errors="replace")
        message = error.message.decode(errors="replace")
        push = len(_DEFAULT_SYNTAX) if file in shifted and error.line == 0 else 0
        place = f":{error.line + 1}:{max(error.column - push, 0) + 1}" if error.line >= 0 else ""
        lines.append(printable(f"{file}{place}: {message}"))
    if len(errors) > 3:
        lines.append(f"and {len(errors) - 3} more")
    return InvalidSchemaError(
        "the protobuf schema does not compile",
        where=printable(name),
        evidence="; ".join(lines),
        next_step="mend the schema text; an import must be registered and listed as a reference",
    )


def _invalid(name: str, evidence: str, problem: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        f"a protobuf file {problem}",
        where=printable(name),
        evidence=evidence,
        next_step="mend the schema or its references",
    )
