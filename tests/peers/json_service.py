"""A server of JSON over HTTP as tests need it: answers that are scripted, and ways to be hostile."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote


@dataclass(frozen=True)
class Asked:
    """A request: its method, its path with the query as it was sent, its headers and its body."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any = None


@dataclass
class Answer:
    """An answer; with `raw` these bytes are sent as they are, with `hangs` nothing is."""

    body: object = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    hangs: bool = False


Handler = Callable[[Asked], Answer]


class JsonService:
    """A server on 127.0.0.1; `handler` answers, and `asked` keeps the requests."""

    def __init__(self, handler: Handler, scheme: str = "http") -> None:
        self._scheme = scheme
        self.handler = handler
        self.asked: list[Asked] = []
        self.port = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while (request := await _request(reader)) is not None:
                self.asked.append(request)
                answer = self.handler(request)
                if answer.hangs:
                    await reader.read()  # until the client gives up
                    break
                writer.write(answer.raw if answer.raw is not None else _bytes(answer))
                await writer.drain()
                if answer.raw is not None:
                    break
        except OSError:
            pass  # the client went away, or refuses the certificate
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, target, headers, json.loads(body) if body else None)


def _bytes(answer: Answer) -> bytes:
    body = b"" if answer.body is None else json.dumps(answer.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} -\r\n{lines}\r\n".encode() + body


@asynccontextmanager
async def json_service(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[JsonService]:
    """Serve while the block runs, with TLS if a context is given."""
    service = JsonService(handler, "http" if context is None else "https")
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, ssl=context)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        server.close()


class SmallRegistry:
    """A schema registry in memory, with as much of Confluent's interface as tests ask for.

    A schema is compatible unless the text `incompatible` stands in it.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, dict[int, int]] = {}
        self.deleted: dict[str, dict[int, int]] = {}
        self.levels: dict[str, str] = {"": "BACKWARD"}

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """Register a schema; return its id."""
        known = next((id_ for id_, found in self.schemas.items() if found == schema), None)
        id_ = known if known is not None else len(self.schemas) + 1
        self.schemas[id_] = schema
        versions = self.subjects.setdefault(subject, {})
        if id_ not in versions.values():
            versions[max(versions, default=0) + 1] = id_
        return id_

    def __call__(self, asked: Asked) -> Answer:
        path, _, query = asked.path.partition("?")
        parts = [unquote(part) for part in path.strip("/").split("/")]
        found = self._answer(asked.method, parts, query, asked.body)
        if found is None:
            return Answer({"error_code": 40401, "message": f"{path} not found"}, 404)
        return Answer(found)

    def _answer(self, method: str, parts: list[str], query: str, body: Any) -> Any:
        match method, parts:
            case "GET", ["subjects"]:
                return [*self.subjects, *(self.deleted if "deleted" in query else ())]
            case "GET", ["subjects", subject, "versions"]:
                return list(self.subjects[subject]) if subject in self.subjects else None
            case "GET", ["subjects", subject, "versions", version]:
                return self._version(subject, version, deleted="deleted" in query)
            case "GET", ["subjects", _, "versions", _, "referencedby"]:
                return []
            case "GET", ["schemas", "ids", id_]:
                return self.schemas.get(int(id_))
            case "GET", ["schemas", "ids", id_, "versions"]:
                return [
                    {"subject": subject, "version": version}
                    for subject, versions in self.subjects.items()
                    for version, known in versions.items()
                    if known == int(id_)
                ]
            case "GET", ["schemas", "guids", guid]:
                return next((found for found in self.schemas.values() if found.get("guid") == guid), None)
            case "POST", ["subjects", subject, "versions"]:
                return {"id": self.register(subject, body)}
            case "POST", ["compatibility", "subjects", subject, "versions", *_]:
                if subject not in self.subjects:
                    return None
                is_bad = "incompatible" in body["schema"]
                return {"is_compatible": not is_bad, "messages": ["a field is missing"] if is_bad else []}
            case "DELETE", ["subjects", subject]:
                self.deleted[subject] = self.subjects.pop(subject)
                return list(self.deleted[subject])
            case "GET", ["config", *subject]:
                level = self.levels.get("".join(subject))
                return {"compatibilityLevel": level} if level else None
            case "PUT", ["config", *subject]:
                self.levels["".join(subject)] = body["compatibility"]
                return body
        return None

    def _version(self, subject: str, version: str, *, deleted: bool) -> dict[str, Any] | None:
        versions = self.subjects.get(subject) or (self.deleted.get(subject) if deleted else None)
        if not versions:
            return None
        number = max(versions) if version == "latest" else int(version)
        if number not in versions:
            return None
        id_ = versions[number]
        return {"subject": subject, "version": number, "id": id_, **self.schemas[id_]}
