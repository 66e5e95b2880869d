"""The process that compiles files of Protobuf: `python -m ottla.registry.server.protobuf_process`.

It takes the text of a file, or its descriptor in base 64, and the names and texts of those that it imports;
it answers with the descriptor, and with the source that all equal files have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ottla.registry.compatibility.bounds import BadSchema
from ottla.registry.limited_process import serve
from ottla.registry.protobuf_files import MAIN, descriptors
from ottla.registry.protobuf_text import source_of

_MOST_REASON: Final = 300


def answer(request: Sequence[Any]) -> dict[str, Any]:
    """Return the descriptor and the source of a file, or the error."""
    text, references = request
    try:
        files = descriptors(text, [(name, source) for name, source in references])
        main = _known(files)
        # The name is the registry's own, and the place of each part in the source is of no use.
        for part in ("name", "source_code_info"):
            main.ClearField(part)
        return {"descriptor": main.SerializeToString(deterministic=True), "text": source_of(main)}
    except BadSchema as error:
        return {"error": str(error)}
    except RecursionError:
        return {"error": "the schema is too deep"}
    except Exception as error:  # of Google's runtime, which has no common class
        words = " ".join(str(error).split()) or type(error).__name__
        return {"error": f"the schema cannot be read: {words[:_MOST_REASON]}"}


def _known(files: list[Any]) -> Any:
    """Return the descriptor of the file, read by a pool that knows the extensions of all that it imports.

    Options by extensions would be unknown bytes otherwise, and missing in the source.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    own = descriptor_pb2.DESCRIPTOR
    if own.name not in {file.name for file in files}:
        pool.AddSerializedFile(own.serialized_pb)
    for file in files:
        pool.Add(file)
    descriptor = pool.FindMessageTypeByName("google.protobuf.FileDescriptorProto")
    main = next(file for file in files if file.name == MAIN)
    return message_factory.GetMessageClass(descriptor).FromString(main.SerializeToString())


if __name__ == "__main__":
    serve(answer)
