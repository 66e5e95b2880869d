"""Classes of Protobuf messages, made of the text of a `.proto` file by Google's compiler."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc


def message_class(text: str, name: str) -> Any:
    """Return the class of a message of a file."""
    included = Path(str(grpc_tools.__file__)).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "given.proto").write_text(text)
        output = Path(folder, "descriptors")
        status = protoc.main(
            ["protoc", f"-I{folder}", f"-I{included}", "--include_imports", f"--descriptor_set_out={output}",
             "given.proto"]
        )  # fmt: skip
        assert status == 0, "the file cannot be compiled"
        files = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
