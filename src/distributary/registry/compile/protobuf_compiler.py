"""Compiles `.proto` texts inside the process, without a protoc binary or a path from outside.

Every file gets a checked name in a private folder, which exists for one compilation. The compiler
searches no other folder, so an import cannot reach files of this machine.
"""

from __future__ import annotations

import ast
import base64
import binascii
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Protocol

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto as File
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from grpc_tools import _protoc_compiler

from distributary.errors import ErrorCode, InvalidSchemaError, SetupError
from distributary.model.names import printable
from distributary.model.record import Compiled
from distributary.registry.compile import NO_IMPORTS

# Schemas that a registry returns as a base64 FileDescriptorProto instead of `.proto` text.

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_TIMEOUT_SECONDS = 120


def _descriptor_of(name: str, text: str) -> File | None:
    if not _BASE64.fullmatch(text):
        return None
    try:
        raw = base64.b64decode("".join(text.split()), validate=True)
        file = File.FromString(raw)
    except (binascii.Error, DecodeError):
        return None
    # registries name the file themselves, but only the importer's name counts
    file.name = name
    file.ClearField("source_code_info")
    # plain words can be valid base64 by chance, but then they declare nothing
    declares = file.message_type or file.enum_type or file.extension or file.public_dependency
    return file if declares else None


def _link(name: str, ready: Mapping[str, File]) -> list[File]:
    """Return a descriptor after the files that it imports, with every type name resolved."""
    pool = descriptor_pool.DescriptorPool()
    linked = []
    for file in _in_order(name, ready):
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise _invalid_set(file.name, str(error)) from None
        resolved = File()
        pool.FindFileByName(file.name).CopyToProto(resolved)
        linked.append(resolved)
    return linked


def _in_order(name: str, ready: Mapping[str, File]) -> list[File]:
    """Return the files with dependencies first, without recursion because chains can be long."""
    done: dict[str, File] = {}
    opened: set[str] = set()
    pending = [name]
    while pending:
        current = pending[-1]
        file = ready.get(current)
        if current in done or file is None:
            pending.pop()
            if current not in done:
                if not is_bundled(current):
                    raise _invalid_set(name, f"import {current} is not among the references")
                for bundled in _run(current, bundled_for([current])):
                    done.setdefault(bundled.name, bundled)
            continue
        missing = [dependency for dependency in file.dependency if dependency not in done]
        if not missing:
            done[current] = file
            continue
        opened.add(current)
        circle = opened.intersection(missing)
        if circle:
            raise _invalid_set(name, f"file imports itself through {min(circle)}")
        pending += missing
    return list(done.values())


def _compile_with(ready: Mapping[str, File], *, name: str, folder: Path) -> list[File]:
    # no import can have these names, because no part of an import may begin with a dot
    inputs, output = folder / ".ready", folder / ".compiled"
    everything = FileDescriptorSet(file=list(ready.values()))
    inputs.write_bytes(everything.SerializeToString())
    try:
        # The compiler reads descriptors only as a separate process. With -P the interpreter does
        # not import from a folder that holds files from outside.
        done = subprocess.run(  # noqa: S603 - our own interpreter, and names that were checked
            [
                *(sys.executable, "-P", "-m", "grpc_tools.protoc", f"--proto_path={folder}"),
                *(f"--descriptor_set_in={inputs}", f"--descriptor_set_out={output}"),
                *("--include_imports", name),
            ],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _invalid_set(name, f"not compiled after {_TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        errors = done.stderr.decode(errors="replace").replace(f"{folder}/", "")
        raise _invalid_set(name, "; ".join(errors.splitlines()[:3]))
    return list(FileDescriptorSet.FromString(output.read_bytes()).file)


def _invalid_set(name: str, evidence: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        "a schema with serialized descriptors does not compile",
        where=printable(name),
        evidence=printable(evidence),
        next_step="register the schema again as .proto text, with its imports as references",
    )


# Schemas that may be imported without registering them first.

_META = """\
// What Confluent's tools attach to files, messages, fields and enums.
syntax = "proto3";

package confluent;

import "google/protobuf/descriptor.proto";

message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}

message Rule {
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}

extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""

_DECIMAL = """\
// An unscaled two's complement integer, big endian, and its scale; precision 0 is unlimited.
syntax = "proto3";

package confluent.type;

message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""

CONFLUENT: Mapping[str, str] = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": _DECIMAL,
    # both spellings of the folder are in use
    "confluent/types/decimal.proto": _DECIMAL,
}

_MENTIONED = re.compile(r"(?:google/type|confluent)/[a-z_/]+\.proto")


def _google_protobuf_folder() -> Traversable:
    return resources.files("grpc_tools") / "_proto"


def is_bundled(name: str) -> bool:
    """Return True if an import is bundled with this package, whatever a registry has for it."""
    return name in CONFLUENT or name in _google_protobuf() or name in _google_type()


def bundled_for(texts: Iterable[str]) -> dict[str, str]:
    """Return the bundled files that these texts mention, directly or through each other.

    `google/protobuf/*` is not included: the compiler reads it from its own folder. A mention in a
    comment counts too, and only adds an unused file.
    """
    bundled: dict[str, str] = {}
    pending = list(texts)
    while pending:
        for name in set(_MENTIONED.findall(pending.pop())) - bundled.keys():
            text = CONFLUENT.get(name) or _google_type().get(name)
            if text is not None:
                bundled[name] = text
                pending.append(text)
    return bundled


@cache
def _google_protobuf() -> frozenset[str]:
    folder = _google_protobuf_folder() / "google" / "protobuf"
    names = {f"google/protobuf/{entry.name}" for entry in folder.iterdir()}
    names |= {f"google/protobuf/compiler/{entry.name}" for entry in (folder / "compiler").iterdir()}
    return frozenset(name for name in names if name.endswith(".proto"))


@cache
def _google_type() -> Mapping[str, str]:
    # googleapis-common-protos is optional: without it these imports are reported as missing
    try:
        folder = resources.files("google.type")
    except ModuleNotFoundError:
        return {}
    return {
        f"google/type/{entry.name}": entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".proto")
    }


MAX_TEXT = 1024 * 1024
"""The longest schema text: a broker's default limit for the registry's own topic."""
MAX_FILES = 1000
"""The largest number of files that one schema may import."""

_SEGMENT = re.compile(r"\w(?:[\w.+@=~ -]{0,198}[\w+@=~-])?")
_OPENING = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*(syntax\b|edition\b)?", re.DOTALL)
_DEFAULT_SYNTAX = 'syntax = "proto2"; '
_DESCRIPTOR = re.compile(rb"^ *DESCRIPTOR = .*AddSerializedFile\((b'.*')\)$", re.MULTILINE)
_LOCK = threading.Lock()


class FoundImport(Protocol):
    """The compiler's message about one place; it counts from 0, and line -1 is the whole file."""

    filename: bytes
    line: int
    column: int
    message: bytes


def compile_proto(
    text: str, *, name: str = "schema.proto", imports: Mapping[str, str] = NO_IMPORTS
) -> Compiled:
    """Compile a schema in proto2, proto3 or an edition; without a `syntax` line it is proto2.

    The text is `.proto`, or a base64 FileDescriptorProto; its own file is called `name`. `imports`
    holds all direct and indirect imports by the name they are imported under. Bundled files take
    precedence.
    """
    while name in imports:
        name = f"_{name}"
    import_texts = {key: value for key, value in imports.items() if not is_bundled(key)}
    if len(import_texts) > MAX_FILES:
        raise _invalid(name, f"{len(import_texts)} imports", "imports too many files")
    for file, content in [(name, text), *import_texts.items()]:
        _check_name(file)
        if len(content) > MAX_TEXT:
            raise _invalid(file, f"{len(content)} characters", f"is longer than {MAX_TEXT}")
    return _compile(name, {**import_texts, name: text})


def _compile(name: str, sources: Mapping[str, str]) -> Compiled:
    ready = {key: file for key, source in sources.items() if (file := _descriptor_of(key, source))}
    texts = {key: value for key, value in sources.items() if key not in ready}
    if not ready:
        files = _run(name, texts)
    elif not texts:
        files = _link(name, ready)
    else:
        with tempfile.TemporaryDirectory(prefix="distributary-proto-") as folder:
            mentioned = [
                *texts.values(),
                *(
                    dependency
                    for descriptor in ready.values()
                    for dependency in descriptor.dependency
                ),
            ]
            _write(Path(folder), {**bundled_for(mentioned), **texts})
            files = _compile_with(ready, name=name, folder=Path(folder))
    last = files[-1]
    prefix = f"{last.package}." if last.package else ""
    messages = tuple(prefix + message.name for message in last.message_type)
    body = FileDescriptorSet(file=files).SerializeToString()
    return Compiled(body, messages[0] if messages else "", messages)


def _run(name: str, texts: Mapping[str, str]) -> list[File]:
    include = str(_google_protobuf_folder())
    with tempfile.TemporaryDirectory(prefix="distributary-proto-") as folder:
        shifted = _write(Path(folder), {**bundled_for(texts.values()), **texts})
        try:
            # returns its messages as values, where `protoc.main` would print them to stderr
            with _LOCK:
                generated = _protoc_compiler.get_protos(
                    name.encode(), [folder.encode(), include.encode()]
                )
        except _protoc_compiler.ProtocErrors as error:
            raise _findings(name, error.args[0], shifted) from None
    return [_descriptor(code) for _, code in generated]


def _descriptor(code: bytes) -> File:
    """Read the descriptor out of the compiler's Python module, without executing it."""
    match = _DESCRIPTOR.search(code)
    if match is None:
        raise SetupError(
            "the installed grpcio-tools does not give descriptors in the known form",
            code=ErrorCode.EXTRA_MISSING,
            where="grpc_tools",
            next_step="install the version of grpcio-tools that this package asks for",
        )
    return File.FromString(ast.literal_eval(match[1].decode("ascii")))


def _write(root: Path, texts: Mapping[str, str]) -> set[str]:
    """Write the files; return those whose first line was shifted by a syntax declaration."""
    shifted = set()
    for name, text in texts.items():
        text = text.removeprefix("\ufeff")
        opening = _OPENING.match(text)
        if opening is None or opening[1] is None:
            # declared explicitly, because the compiler logs to stderr when it assumes a syntax
            text = _DEFAULT_SYNTAX + text
            shifted.add(name)
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # created exclusively, so that two names do not share a file where case is ignored
            with path.open("x", encoding="utf-8", errors="surrogatepass", newline="") as file:
                file.write(text)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise _invalid(
                name, "another import uses the name as a file or folder", "clashes"
            ) from None
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


def _findings(name: str, errors: list[FoundImport], shifted: set[str]) -> InvalidSchemaError:
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
        next_step="fix the schema text; an import must be registered and listed as a reference",
    )


def _invalid(name: str, evidence: str, problem: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        f"a protobuf file {problem}",
        where=printable(name),
        evidence=evidence,
        next_step="fix the schema or its references",
    )
