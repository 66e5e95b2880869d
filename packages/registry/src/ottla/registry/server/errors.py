"""Refusals of the registry, with the status and the code that Confluent's has for them."""

from __future__ import annotations

from typing import Final

from ottla.client.errors import ClientError

INCOMPATIBLE: Final = 409
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
SUBJECT_SOFT_DELETED: Final = 40404
SUBJECT_NOT_SOFT_DELETED: Final = 40405
VERSION_SOFT_DELETED: Final = 40406
VERSION_NOT_SOFT_DELETED: Final = 40407
NO_SUBJECT_LEVEL: Final = 40408
NO_SUBJECT_MODE: Final = 40409
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
INVALID_LEVEL: Final = 42203
INVALID_MODE: Final = 42204
NOT_PERMITTED: Final = 42205
REFERENCE_EXISTS: Final = 42206
INVALID_SUBJECT: Final = 42208
STORE_FAILED: Final = 50001
STORE_TIMEOUT: Final = 50002


class Refused(ClientError):
    """The registry refuses a request: its code, and one line of text."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status: the first three digits of the code."""
        return int(str(self.code)[:3])


def no_subject(subject: str) -> Refused:
    """Return the refusal of a subject that is not there."""
    return Refused(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def no_version(version: int | str) -> Refused:
    """Return the refusal of a version that is not there."""
    return Refused(VERSION_NOT_FOUND, f"Version {version} not found.")


def no_schema() -> Refused:
    """Return the refusal of a schema that is not there."""
    return Refused(SCHEMA_NOT_FOUND, "Schema not found")


NOT_SERVED: Final[dict[str, str]] = {
    "/exporters{rest:path}": "exporters are not served: mode IMPORT takes schemas with their ids",
    "/associations{rest:path}": "associations are not served: subject_name_strategy names the subject",
    "/subjects/{subject}/versions/{version}/tags": (
        "tags are not written into the text of a schema: register a version with metadata.tags"
    ),
    "/catalog{rest:path}": "the catalog is not served: tags are in the metadata of schemas",
    "/dek-registry{rest:path}": "keys of encryption are not served: rules of encryption are not executed",
}
"""Paths of Confluent's registry, where other routes do not have them, with the reason of the refusal."""
