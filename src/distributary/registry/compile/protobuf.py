"""Compiles `.proto` text inside the process: no protoc binary, no path from outside.

Every file is written under a name that was checked first into a private folder that lives as long
as one compilation, and the compiler looks nowhere else, so an import cannot reach this machine.
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

# Schemas that a registry gives as a base64 FileDescriptorProto instead of `.proto` text.

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
    # registries give a file a name of their own: the importer's name is the one that counts
    file.name = name
    file.ClearField("source_code_info")
    # words of plain text can be valid base64 of something: a descriptor declares something
    declares = file.message_type or file.enum_type or file.extension or file.public_dependency
    return file if declares else None


def _link(name: str, ready: Mapping[str, File]) -> list[File]:
    """A descriptor behind the files that it imports, with every type name resolved."""
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
    """Dependencies first; without recursion, because a chain of imports can be long."""
    done: dict[str, File] = {}
    opened: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting[-1]
        file = ready.get(current)
        if current in done or file is None:
            waiting.pop()
            if current not in done:
                if not is_bundled(current):
                    raise _invalid_set(name, f"import {current} is not among the references")
                for bundled in _run(current, bundled_for([current])):
                    done.setdefault(bundled.name, bundled)
            continue
        missing = [d for d in file.dependency if d not in done]
        if not missing:
            done[current] = file
            continue
        opened.add(current)
        circle = opened.intersection(missing)
        if circle:
            raise _invalid_set(name, f"file imports itself through {min(circle)}")
        waiting += missing
    return list(done.values())


def _compile_with(ready: Mapping[str, File], *, name: str, folder: Path) -> list[File]:
    # no import can have these names: none of their parts may begin with a dot
    inputs, output = folder / ".ready", folder / ".compiled"
    everything = FileDescriptorSet(file=list(ready.values()))
    inputs.write_bytes(everything.SerializeToString())
    try:
        # the compiler can read descriptors only when it is started with them, as a process;
        # -P: the interpreter must not import from a folder that holds files from outside
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
        said = done.stderr.decode(errors="replace").replace(f"{folder}/", "")
        raise _invalid_set(name, "; ".join(said.splitlines()[:3]))
    return list(FileDescriptorSet.FromString(output.read_bytes()).file)


def _invalid_set(name: str, evidence: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        "a schema with serialized descriptors does not compile",
        where=printable(name),
        evidence=printable(evidence),
        next_step="register the schema again as .proto text, with its imports as references",
    )


# Schemas that every author may import without registering them first.

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
    # the folder has both spellings in the wild
    "confluent/types/decimal.proto": _DECIMAL,
}

_MENTIONED = re.compile(r"(?:google/type|confluent)/[a-z_/]+\.proto")


def _google_protobuf_folder() -> Traversable:
    return resources.files("grpc_tools") / "_proto"


def is_bundled(name: str) -> bool:
    """Whether an import is answered from here, whatever a registry says about it."""
    return name in CONFLUENT or name in _google_protobuf() or name in _google_type()


def bundled_for(texts: Iterable[str]) -> dict[str, str]:
    """The bundled files that these texts mention, and what those mention in turn.

    `google/protobuf/*` is not among them: the compiler reads it from its own folder. A mention in
    a comment counts too, which costs a file that nobody reads.
    """
    found: dict[str, str] = {}
    waiting = list(texts)
    while waiting:
        for name in set(_MENTIONED.findall(waiting.pop())) - found.keys():
            text = CONFLUENT.get(name) or _google_type().get(name)
            if text is not None:
                found[name] = text
                waiting.append(text)
    return found


@cache
def _google_protobuf() -> frozenset[str]:
    folder = _google_protobuf_folder() / "google" / "protobuf"
    names = {f"google/protobuf/{entry.name}" for entry in folder.iterdir()}
    names |= {f"google/protobuf/compiler/{e.name}" for e in (folder / "compiler").iterdir()}
    return frozenset(name for name in names if name.endswith(".proto"))


@cache
def _google_type() -> Mapping[str, str]:
    # googleapis-common-protos is not needed for anything else: without it, these imports are
    # reported as missing like any other
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
"""The longest schema text: what a broker accepts by default for the registry's own topic."""
MAX_FILES = 1000
"""The most files that one schema may pull in."""

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


def compile_proto(
    text: str, *, name: str = "schema.proto", imports: Mapping[str, str] = NO_IMPORTS
) -> Compiled:
    """Compile a schema, proto2, proto3 or an edition; no `syntax` line means proto2.

    The text is `.proto`, or a base64 FileDescriptorProto; its own file is called `name`. Imports,
    and theirs, are by the name they are imported under; what is bundled here takes precedence.
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
    return _compile(name, {**given, name: text})


def _compile(name: str, sources: Mapping[str, str]) -> Compiled:
    ready = {key: file for key, each in sources.items() if (file := _descriptor_of(key, each))}
    texts = {key: value for key, value in sources.items() if key not in ready}
    if not ready:
        files = _run(name, texts)
    elif not texts:
        files = _link(name, ready)
    else:
        with tempfile.TemporaryDirectory(prefix="distributary-proto-") as folder:
            mentioned = [*texts.values(), *(d for f in ready.values() for d in f.dependency)]
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
            # gives its findings as values, where `protoc.main` prints them to everybody's stderr
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
        next_step="fix the schema text; an import must be registered and listed as a reference",
    )


def _invalid(name: str, evidence: str, problem: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        f"a protobuf file {problem}",
        where=printable(name),
        evidence=evidence,
        next_step="fix the schema or its references",
    )
