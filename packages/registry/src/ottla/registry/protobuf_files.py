"""Files of Protobuf: sources compiled into descriptors, and descriptors that registries hand out as such.

Google's compiler reads the sources. It is written in C++: where sources are by strangers, it belongs into a
process with limits.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ottla.registry.compatibility.bounds import BadSchema

References = Sequence[tuple[str, str]]
__all__ = ["MAIN", "BadSchema", "descriptors", "file_set", "message_name"]
_MOST_REASON: Final = 300
_WELL_KNOWN: Final = frozenset(
    f"google/protobuf/{name}.proto"
    for name in (
        "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct",
        "timestamp", "type", "wrappers",
    )
)  # fmt: skip


BUILT_IN_SOURCES: Final[Mapping[str, str]] = {
    "confluent/meta.proto": (
        'syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto"; '
        "message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; } "
        "extend google.protobuf.FileOptions { Meta file_meta = 1088; } "
        "extend google.protobuf.MessageOptions { Meta message_meta = 1088; } "
        "extend google.protobuf.FieldOptions { Meta field_meta = 1088; } "
        "extend google.protobuf.EnumOptions { Meta enum_meta = 1088; } "
        "extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }"
    ),
    "confluent/type/decimal.proto": (
        'syntax = "proto3"; package confluent.type; '
        "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"
    ),
}
"""Files that a registry imports by itself, and lists nowhere."""
MAIN: Final = "schema.proto"
_LOG_LINES: Final = ("WARNING: All log messages", "E0000", "W0000", "I0000")


def descriptors(text: str, references: References) -> list[Any]:
    """Return the descriptors of a file and of all that it imports, each behind those that it imports.

    The file itself has the name MAIN. Raises BadSchema.
    """
    from google.protobuf import descriptor_pb2

    if (found := _given_descriptors(text, references)) is not None:
        return found
    return list(descriptor_pb2.FileDescriptorSet.FromString(file_set(text, references)).file)


def _given_descriptors(text: str, references: References) -> list[Any] | None:
    """Return the descriptors where all files are given as such; None where a source must be compiled."""
    given: dict[str, Any] = {}
    for name, source in (*references, (MAIN, text)):
        if (content := described_file(name, source)) is None:
            return None
        given[name] = _file_of(content)
    found: dict[str, Any] = {}
    stack = [MAIN]
    while stack:
        name = stack[-1]
        file = given.get(name) or _well_known(name)
        if file is None:
            return None
        waiting = [imported for imported in file.dependency if imported not in found]
        if waiting and len(stack) > len(given) + len(_WELL_KNOWN):
            raise BadSchema(f"{name} imports itself")
        stack += waiting
        if not waiting:
            found[stack.pop()] = file
    return list(found.values())


def _well_known(name: str) -> Any:
    if name not in _WELL_KNOWN:
        return None
    module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    return _proto(module.DESCRIPTOR.serialized_pb)


def _file_of(content: bytes) -> Any:
    from google.protobuf import descriptor_pb2

    return descriptor_pb2.FileDescriptorSet.FromString(content).file[0]


def _proto(content: bytes) -> Any:
    from google.protobuf import descriptor_pb2

    return descriptor_pb2.FileDescriptorProto.FromString(content)


def message_name(file: Any, place: Sequence[int]) -> str:
    """Return the full name of the message at a place of a file. Raises BadSchema."""
    names, messages = [file.package] if file.package else [], file.message_type
    for index in place:
        if index >= len(messages):
            raise BadSchema(f"the schema has no message at {list(place)}: the value names another one")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def file_set(text: str, references: References) -> bytes:
    """Compile files into their descriptors. Raises BadSchema with the compiler's words."""
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError:
        raise BadSchema(
            "schemas of Protobuf need `python -m pip install 'ottla-registry[protobuf]'`"
        ) from None
    included = Path(str(grpc_tools.__file__)).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="ottla-registry-") as folder:
        given = {**BUILT_IN_SOURCES, **dict(references), MAIN: text}
        described, output = Path(folder, "given-descriptors"), Path(folder, "descriptors")
        with described.open("wb") as file:
            for name, source in given.items():
                path = Path(folder, _checked_name(name))
                if (included / name).exists():
                    continue
                if (content := described_file(name, source)) is not None:
                    file.write(content)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source, encoding="utf-8")
        status, said = _quietly(
            lambda: protoc.main(
                ["protoc", f"-I{folder}", f"-I{included}", "--include_imports",
                 f"--descriptor_set_in={described}", f"--descriptor_set_out={output}", MAIN]
            ),
            Path(folder, "said"),
        )  # fmt: skip
        if status != 0:
            raise BadSchema(f"the schema cannot be read: {said.replace(folder + '/', '')[:_MOST_REASON]}")
        return output.read_bytes()


def described_file(name: str, text: str) -> bytes | None:
    """Return a set of one descriptor for a file that was registered as such, in base 64; None for a source.

    Confluent's Python client registers files so, and not every registry makes a source of them.
    """
    from google.protobuf import descriptor_pb2

    try:
        content = base64.b64decode(text.strip(), validate=True)
        file = descriptor_pb2.FileDescriptorProto.FromString(content)
    except Exception:  # DecodeError is no ValueError; a source is neither base 64 nor a descriptor
        return None
    if not content:
        return None
    file.name = name
    found: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return found


def _checked_name(name: str) -> str:
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts or len(name) > 250:
        raise BadSchema(f"the schema imports {name[:100]!r}, which is no name of a file")
    return name


def _quietly(call: Callable[[], int], said: Path) -> tuple[int, str]:
    """Call the compiler, which writes to descriptor 2 by itself; return its status and its words."""
    kept = os.dup(2)
    try:
        with said.open("wb") as file:
            os.dup2(file.fileno(), 2)
            status = call()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    return status, next((line for line in lines if not line.startswith(_LOG_LINES)), "no reason given")
