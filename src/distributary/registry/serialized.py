"""Schemas that a registry gives as a base64 FileDescriptorProto instead of `.proto` text."""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto as File
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from distributary.errors import InvalidSchemaError
from distributary.registry.hostile import printable

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_TIMEOUT_SECONDS = 120


def descriptors_in(sources: Mapping[str, str]) -> dict[str, File]:
    """Those sources that are serialized descriptors, each under the name it is imported by."""
    found = {}
    for name, text in sources.items():
        file = _descriptor_of(text)
        if file is not None:
            # registries give a file a name of their own: the importer's name is the one that counts
            file.name = name
            file.ClearField("source_code_info")
            found[name] = file
    return found


def _descriptor_of(text: str) -> File | None:
    if not _BASE64.fullmatch(text):
        return None
    try:
        raw = base64.b64decode("".join(text.split()), validate=True)
        file = File.FromString(raw)
    except (binascii.Error, DecodeError):
        return None
    # words of plain text can be valid base64 of something: a descriptor declares something
    declares = file.message_type or file.enum_type or file.extension or file.public_dependency
    return file if declares else None


def link(
    name: str, *, ready: Mapping[str, File], bundled: Callable[[str], list[File]]
) -> list[File]:
    """Put a descriptor behind the files that it imports, with every type name resolved.

    Args:
        name: The file to end with.
        ready: The descriptors by name, its own among them.
        bundled: Gives a bundled file behind the files that it imports; empty when there is none.
    """
    pool = descriptor_pool.DescriptorPool()
    linked = []
    for file in _in_order(name, ready, bundled):
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise _invalid(file.name, str(error)) from None
        resolved = File()
        pool.FindFileByName(file.name).CopyToProto(resolved)
        linked.append(resolved)
    return linked


def _in_order(
    name: str, ready: Mapping[str, File], bundled: Callable[[str], list[File]]
) -> list[File]:
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
                files = bundled(current)
                if not files:
                    raise _invalid(name, f"import {current} is not among the references")
                done.update((f.name, f) for f in files if f.name not in done)
            continue
        missing = [d for d in file.dependency if d not in done]
        if not missing:
            done[current] = file
            continue
        opened.add(current)
        circle = opened.intersection(missing)
        if circle:
            raise _invalid(name, f"file imports itself through {min(circle)}")
        waiting += missing
    return list(done.values())


def compile_with(ready: Mapping[str, File], *, name: str, folder: Path) -> list[File]:
    """Compile a file where some are descriptors and the rest is `.proto` text in a folder.

    Runs the compiler as a process of its own, which costs a hundred times as much as a call: it
    can read descriptors only when it is started with them, and then reports to its own stderr.
    """
    # no import can have these names: none of their parts may begin with a dot
    inputs, output = folder / ".ready", folder / ".compiled"
    everything = FileDescriptorSet(file=list(ready.values()))
    inputs.write_bytes(everything.SerializeToString())
    try:
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
        raise _invalid(name, f"not compiled after {_TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").replace(f"{folder}/", "")
        raise _invalid(name, "; ".join(said.splitlines()[:3]))
    return list(FileDescriptorSet.FromString(output.read_bytes()).file)


def _invalid(name: str, evidence: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        "a schema with serialized descriptors does not compile",
        where=printable(name),
        evidence=printable(evidence),
        next_step="register the schema again as .proto text, with its imports as references",
    )
