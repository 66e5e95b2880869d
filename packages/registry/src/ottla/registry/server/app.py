"""The registry over HTTP: Confluent's paths, bodies and codes, by Starlette."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ottla import registry
from ottla.registry.client import Reference
from ottla.registry.server import errors
from ottla.registry.server.access import SLASH
from ottla.registry.server.errors import Refused, no_schema
from ottla.registry.server.questions import GivenSchema, property_of
from ottla.registry.server.service import RegistryService
from ottla.registry.server.state import DEFAULT_CONTEXT, SchemaValue, context_of, qualified

log = logging.getLogger(__name__)

MOST_BODY_BYTES: Final = 4 << 20
BODY_S: Final = 30.0
MOST_LISTED: Final = 10_000
"""Schemas with their texts in one answer."""
MOST_LISTED_LETTERS: Final = 16 << 20
_SHOWN_AT_ONCE: Final = 100
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_ALL_CONTEXTS: Final = ":*:"
_DEFAULT_PREFIX: Final = f":{DEFAULT_CONTEXT}:"
_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH")
_Number = Annotated[int, msgspec.Meta(le=(1 << 31) - 1)]
"""An id or a version: values have four bytes for the id of their schema."""
Answer = Callable[[RegistryService, Request], Awaitable[Any]]


class GivenBody(msgspec.Struct, rename="camel"):
    """The body of a request about a schema."""

    schema: str
    schema_type: str | None = None
    references: list[Reference] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: _Number | None = None
    version: _Number | None = None

    def given(self) -> GivenSchema:
        """Return the schema; an id or a version below one is none."""
        return GivenSchema(
            self.schema_type or "AVRO", self.schema, tuple(self.references or ()), self.metadata,
            self.rule_set, self.id if (self.id or 0) > 0 else None,
            self.version if (self.version or 0) > 0 else None,
        )  # fmt: skip


def application(service: RegistryService) -> Starlette:
    """Return the application that serves a registry."""
    routes = [
        Route(path, _endpoint(service, answers), methods=list(answers)) for path, answers in PATHS.items()
    ]
    within = [
        Route(f"/contexts/{{context}}{route.path}", route.endpoint, methods=list(route.methods or ()))
        for route in routes
        if not route.path.startswith(("/contexts", "/v1")) and route.path != "/"
    ]
    refused = [Route(path, _refusing(reason), methods=_METHODS) for path, reason in errors.NOT_SERVED.items()]
    handlers: Mapping[Any, Any] = {404: _not_found, 405: _not_allowed, 500: _failed}
    return Starlette(routes=[*routes, *within, *refused], exception_handlers=handlers)


def _refusing(reason: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return _refusal(501, 501, reason)

    return endpoint


def _endpoint(
    service: RegistryService, answers: Mapping[str, Answer]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        try:
            return _json(await answers[method](service, request))
        except Refused as error:
            return _refusal(error.status, error.code, str(error))
        except ClientDisconnect:
            return Response(status_code=400)

    return endpoint


async def _not_found(request: Request, error: Exception) -> Response:
    return _refusal(404, 404, "HTTP 404 Not Found")


async def _not_allowed(request: Request, error: Exception) -> Response:
    return _refusal(405, 405, "HTTP 405 Method Not Allowed")


async def _failed(request: Request, error: Exception) -> Response:
    log.error("request failed", extra={"path": request.url.path[:200]}, exc_info=error)
    return _refusal(500, 500, "Internal Server Error")


def _refusal(status: int, code: int, message: str) -> Response:
    return _json({"error_code": code, "message": message}, status)


def _json(found: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(found), status, media_type=_MEDIA_TYPE)


# --- parts of requests


async def _body(request: Request, kind: Any) -> Any:
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MOST_BODY_BYTES:
        raise _too_large()
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                content += part
                if len(content) > MOST_BODY_BYTES:
                    raise _too_large()
    except TimeoutError:
        raise Refused(408, f"the body did not come within {BODY_S:g} s") from None
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused(422, f"the body is not as it is wanted: {str(error)[:200]}") from None


def _too_large() -> Refused:
    return Refused(413, f"the body has more than {MOST_BODY_BYTES >> 20} MiB")


def _own_subject(request: Request) -> str:
    name = request.path_params.get("subject", "").replace(SLASH, "/")
    return qualified(_context(request), name.removeprefix(_DEFAULT_PREFIX))


def _subject(service: RegistryService, request: Request) -> str:
    """Return the subject of a path about schemas, in which an alias stands for another one."""
    return service.resolved(_own_subject(request))


def _context(request: Request) -> str:
    name = request.path_params.get("context", "")
    name = name.strip(":")
    return DEFAULT_CONTEXT if name in ("", DEFAULT_CONTEXT) else name if name.startswith(".") else f".{name}"


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def _number(request: Request, name: str, otherwise: int) -> int:
    text = request.query_params.get(name, "")
    try:
        return int(text) if text and len(text) < 12 else otherwise
    except ValueError:
        raise Refused(422, f"{name} must be a number") from None


def _version(request: Request) -> int | str:
    text = request.path_params["version"]
    if text in ("latest", "-1"):
        return "latest"
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) < 1 << 31):
        wanted = 'Allowed values are between [1, 2^31-1] and the string "latest"'
        raise Refused(
            errors.INVALID_VERSION, f"The specified version '{text[:40]}' is not a valid version id. {wanted}"
        )
    return int(text)


def _schema_id(request: Request) -> int:
    text = request.path_params["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise no_schema()
    return int(text)


def _part(request: Request, found: list[Any]) -> list[Any]:
    offset, limit = max(_number(request, "offset", 0), 0), _number(request, "limit", -1)
    return found[offset:] if limit < 0 else found[offset : offset + limit]


# --- schemas


async def _shown(
    service: RegistryService, request: Request, value: SchemaValue, **more: Any
) -> dict[str, Any]:
    """Return a schema as answers have it, with `format=serialized` as a descriptor of Protobuf."""
    text = value.schema
    if value.schema_type == "PROTOBUF" and request.query_params.get("format") == "serialized":
        text = await service.serialized(value)
    shown = {**more, "guid": value.guid, "schema": text}
    if value.schema_type != "AVRO":
        shown["schemaType"] = value.schema_type
    if value.references:
        shown["references"] = value.references
    return shown | {
        name: found
        for name, found in (("metadata", value.metadata), ("ruleSet", value.rule_set))
        if found is not None
    }


def _placed(value: SchemaValue) -> dict[str, Any]:
    return {"subject": value.subject, "version": value.version, "id": value.id}


async def _root(service: RegistryService, request: Request) -> Any:
    return {}


async def _kinds(service: RegistryService, request: Request) -> Any:
    return ["JSON", "PROTOBUF", "AVRO"]


async def _by_id(service: RegistryService, request: Request) -> Any:
    value = service.by_id(_schema_id(request), _asked_subject(service, request))
    shown = await _shown(service, request, value)
    if _flag(request, "fetchMaxId"):
        shown["maxId"] = service.state.contexts[value.context].last_id
    return shown


def _asked_subject(service: RegistryService, request: Request) -> str:
    return service.resolved(qualified(_context(request), request.query_params.get("subject", "")))


async def _text_by_id(service: RegistryService, request: Request) -> Any:
    value = service.by_id(_schema_id(request), _asked_subject(service, request))
    return _raw((await _shown(service, request, value))["schema"], value.schema_type)


def _raw(text: str, kind: str) -> Any:
    return text if kind == "PROTOBUF" else msgspec.Raw(text.encode())


def _places(service: RegistryService, request: Request) -> list[SchemaValue]:
    value = service.by_id(_schema_id(request), _asked_subject(service, request))
    places = sorted(service.state.contexts[value.context].places[value.id])
    found = [service.state.subjects[subject][version] for subject, version in places]
    return [entry for entry in found if not entry.deleted or _flag(request, "deleted")]


async def _subjects_by_id(service: RegistryService, request: Request) -> Any:
    return sorted({value.subject for value in _places(service, request)})


async def _versions_by_id(service: RegistryService, request: Request) -> Any:
    return [{"subject": value.subject, "version": value.version} for value in _places(service, request)]


def _ids_of(service: RegistryService, request: Request) -> list[tuple[str, int]]:
    found = service.state.guids.get(request.path_params["guid"].lower())
    if not found:
        raise no_schema()
    return sorted(found)


async def _by_guid(service: RegistryService, request: Request) -> Any:
    context, schema_id = _ids_of(service, request)[0]
    value = service.state.by_id(context, schema_id)
    assert value is not None
    return await _shown(service, request, value)


async def _ids_by_guid(service: RegistryService, request: Request) -> Any:
    return [{"context": context, "id": schema_id} for context, schema_id in _ids_of(service, request)]


async def _all_schemas(service: RegistryService, request: Request) -> Any:
    is_deleted, latest = _flag(request, "deleted"), _flag(request, "latestOnly")
    state, found = service.state, list[SchemaValue]()
    async for names in _pages(service, request, lambda name: is_deleted or state.is_live(name)):
        for name in names:
            versions = state.versions(name, deleted=is_deleted)
            found += versions[-1:] if latest else versions
    listed = _part(request, found)
    if len(listed) > MOST_LISTED or sum(len(value.schema) for value in listed) > MOST_LISTED_LETTERS:
        raise Refused(
            422, f"more than {MOST_LISTED} schemas, or {MOST_LISTED_LETTERS >> 20} Mi letters: ask with limit"
        )
    parts = []
    for at in range(0, len(listed), _SHOWN_AT_ONCE):
        values = listed[at : at + _SHOWN_AT_ONCE]
        shown = [await _shown(service, request, value, **_placed(value)) for value in values]
        parts.append(msgspec.json.encode(shown)[1:-1])
        await asyncio.sleep(0)
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


# --- subjects


async def _pages(
    service: RegistryService, request: Request, is_wanted: Callable[[str], bool]
) -> AsyncIterator[list[str]]:
    """Yield the names that a request is about and that are wanted, page by page: there may be 100,000."""
    context, matches = _context(request), is_wanted
    prefix = request.query_params.get("subjectPrefix", _ALL_CONTEXTS if context == DEFAULT_CONTEXT else "")
    if prefix.startswith(_ALL_CONTEXTS):
        start, rest = "", prefix.removeprefix(_ALL_CONTEXTS)
        if rest:
            matches = lambda name: is_wanted(name) and _local(name).startswith(rest)  # noqa: E731
    else:
        context = context_of(f"{prefix}x") if prefix.startswith(":.") else context
        start = qualified(context, prefix.removeprefix(_DEFAULT_PREFIX))
        matches = lambda name: is_wanted(name) and context_of(name) == context  # noqa: E731
    async for names in service.pages(start):
        yield [name for name in names if matches(name)]


def _local(name: str) -> str:
    context = context_of(name)
    return name if context == DEFAULT_CONTEXT else name.removeprefix(f":{context}:")


async def _subjects(service: RegistryService, request: Request) -> Any:
    state, only = service.state, _flag(request, "deletedOnly")
    is_all = not only and _flag(request, "deleted")

    def is_wanted(name: str) -> bool:
        return is_all or state.is_live(name) != only

    return _part(request, [name async for names in _pages(service, request, is_wanted) for name in names])


async def _lookup(service: RegistryService, request: Request) -> Any:
    body = await _body(request, GivenBody)
    value = await service.lookup(
        _subject(service, request),
        body.given(),
        normalize=_flag(request, "normalize"),
        deleted=_flag(request, "deleted"),
    )
    return await _shown(service, request, value, **_placed(value))


async def _delete_subject(service: RegistryService, request: Request) -> Any:
    return await service.delete_subject(_subject(service, request), permanent=_flag(request, "permanent"))


async def _versions(service: RegistryService, request: Request) -> Any:
    subject, only = _subject(service, request), _flag(request, "deletedOnly")
    found = service.state.versions(subject, deleted=only or _flag(request, "deleted"))
    numbers = [value.version for value in found if value.deleted or not only]
    if not numbers:
        raise errors.no_subject(subject)
    return _part(request, numbers)


async def _register(service: RegistryService, request: Request) -> Any:
    body = await _body(request, GivenBody)
    subject, normalize = _subject(service, request), _flag(request, "normalize")
    value = await service.register(subject, body.given(), normalize=normalize)
    # Without the text: clients keep the one that they sent, a descriptor of Protobuf for instance.
    more = {"metadata": value.metadata, "ruleSet": value.rule_set}
    found = {"id": value.id, "version": value.version, "guid": value.guid}
    return found | {name: part for name, part in more.items() if part is not None}


async def _one_version(service: RegistryService, request: Request) -> Any:
    value = service.version(_subject(service, request), _version(request), deleted=_flag(request, "deleted"))
    return await _shown(service, request, value, **_placed(value))


async def _version_text(service: RegistryService, request: Request) -> Any:
    value = service.version(_subject(service, request), _version(request), deleted=_flag(request, "deleted"))
    return _raw((await _shown(service, request, value))["schema"], value.schema_type)


async def _referred_by(service: RegistryService, request: Request) -> Any:
    value = service.version(_subject(service, request), _version(request), deleted=True)
    return sorted({found.id for found in service.state.referring(value.subject, value.version)})


async def _delete_version(service: RegistryService, request: Request) -> Any:
    permanent = _flag(request, "permanent")
    return await service.delete_version(_subject(service, request), _version(request), permanent=permanent)


async def _by_metadata(service: RegistryService, request: Request) -> Any:
    subject, query = _subject(service, request), request.query_params
    wanted = dict(zip(query.getlist("key"), query.getlist("value"), strict=False))
    versions = service.state.versions(subject, deleted=_flag(request, "deleted"))
    if not versions:
        raise errors.no_subject(subject)
    for value in reversed(versions):
        if all(property_of(value.metadata, name) == content for name, content in wanted.items()):
            return await _shown(service, request, value, **_placed(value))
    raise no_schema()


# --- compatibility and settings


async def _check(service: RegistryService, request: Request) -> Any:
    body = await _body(request, GivenBody)
    version = _version(request) if "version" in request.path_params else None
    found = await service.check(
        _subject(service, request), body.given(), version, normalize=_flag(request, "normalize")
    )
    shown = {"messages": found} if _flag(request, "verbose") else {}
    return {"is_compatible": not found, **shown}


async def _level(service: RegistryService, request: Request) -> Any:
    level, config = service.level(_own_subject(request), default_to_global=_flag(request, "defaultToGlobal"))
    return {**config, "compatibilityLevel": level}


async def _set_level(service: RegistryService, request: Request) -> Any:
    body = await _body(request, dict[str, Any])
    await service.set_level(_own_subject(request), body)
    return body


async def _delete_level(service: RegistryService, request: Request) -> Any:
    return {"compatibilityLevel": await service.delete_level(_own_subject(request))}


async def _mode(service: RegistryService, request: Request) -> Any:
    return {"mode": service.mode(_own_subject(request), default_to_global=_flag(request, "defaultToGlobal"))}


async def _set_mode(service: RegistryService, request: Request) -> Any:
    body = await _body(request, dict[str, Any])
    await service.set_mode(_own_subject(request), body.get("mode"), force=_flag(request, "force"))
    return {"mode": body.get("mode")}


async def _delete_mode(service: RegistryService, request: Request) -> Any:
    return {"mode": await service.delete_mode(_own_subject(request))}


async def _contexts(service: RegistryService, request: Request) -> Any:
    return _part(request, service.state.live_contexts())


async def _no_associations(service: RegistryService, request: Request) -> Any:
    return []


async def _server_id(service: RegistryService, request: Request) -> Any:
    return {"scope": {"path": [], "clusters": {"schema-registry-cluster": service.topic_name}}}


async def _server_version(service: RegistryService, request: Request) -> Any:
    return {"version": registry.__version__, "commitId": ""}


PATHS: Final[dict[str, dict[str, Answer]]] = {
    "/": {"GET": _root},
    "/schemas": {"GET": _all_schemas},
    "/schemas/types": {"GET": _kinds},
    "/schemas/ids/{id}": {"GET": _by_id},
    "/schemas/ids/{id}/schema": {"GET": _text_by_id},
    "/schemas/ids/{id}/subjects": {"GET": _subjects_by_id},
    "/schemas/ids/{id}/versions": {"GET": _versions_by_id},
    "/schemas/guids/{guid}": {"GET": _by_guid},
    "/schemas/guids/{guid}/ids": {"GET": _ids_by_guid},
    "/subjects": {"GET": _subjects},
    "/subjects/{subject}": {"POST": _lookup, "DELETE": _delete_subject},
    "/subjects/{subject}/metadata": {"GET": _by_metadata},
    "/subjects/{subject}/versions": {"GET": _versions, "POST": _register},
    "/subjects/{subject}/versions/{version}": {"GET": _one_version, "DELETE": _delete_version},
    "/subjects/{subject}/versions/{version}/schema": {"GET": _version_text},
    "/subjects/{subject}/versions/{version}/referencedby": {"GET": _referred_by},
    "/compatibility/subjects/{subject}/versions": {"POST": _check},
    "/compatibility/subjects/{subject}/versions/{version}": {"POST": _check},
    "/config": {"GET": _level, "PUT": _set_level, "DELETE": _delete_level},
    "/config/{subject}": {"GET": _level, "PUT": _set_level, "DELETE": _delete_level},
    "/mode": {"GET": _mode, "PUT": _set_mode},
    "/mode/{subject}": {"GET": _mode, "PUT": _set_mode, "DELETE": _delete_mode},
    "/contexts": {"GET": _contexts},
    "/associations/subjects/{subject}": {"GET": _no_associations},
    "/associations/resources/{id}": {"GET": _no_associations},
    "/associations/resources/{namespace}/{name}": {"GET": _no_associations},
    "/v1/metadata/id": {"GET": _server_id},
    "/v1/metadata/version": {"GET": _server_version},
}
"""The routes: paths, methods, and the functions that answer. Most are also below `/contexts/NAME`."""
