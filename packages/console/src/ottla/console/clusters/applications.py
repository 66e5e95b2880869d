"""Streams apps and pipelines, read from the status that they serve or write. What they claim is not trusted.

A streams app serves `/status` (`ottla streams run --status`), and so does a pipeline (`ottla pipeline run
--status`), which also writes `status.json` into its checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from ottla.client.environment import monotonic_s
from ottla.console.clusters.samples import NoSample, Sample, Sampled

MOST_BYTES: Final = 4 << 20
MOST_PIPELINES: Final = 200
"""Pipelines of one folder."""
MOST_PARTITIONS: Final = 500
"""Partitions of one processor that are shown."""
READ_S: Final = 5.0
SILENT_S: Final = 15.0
_MOST_TEXT: Final = 2_000
_MOST_NUMBER: Final = 10**18
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the status of an app or of pipelines is: an address, or a folder with checkpoints."""

    kind: Literal["streams", "pipelines"]
    at: str
    cluster: str | None = None
    """The cluster on whose page it is; None is all."""
    token_file: Path | None = None
    cafile: Path | None = None

    @property
    def is_address(self) -> bool:
        """Whether it is asked by HTTP."""
        return self.kind == "streams" or self.at.startswith(("http://", "https://"))


def parse_place(
    kind: Literal["streams", "pipelines"],
    text: str,
    token_file: Path | None = None,
    cafile: Path | None = None,
) -> Place:
    """Return the place that a user names: `[CLUSTER=]` and an address or a folder. Raises ValueError."""
    cluster, equals, rest = text.partition("=")
    if not (equals and _NAME.fullmatch(cluster)):
        cluster, rest = "", text
    if kind == "streams" and "://" not in rest:
        rest = f"http://{rest}"
    if "://" in rest:
        parts = urlsplit(rest)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError(f"{text!r} is no address such as http://127.0.0.1:9465")
        rest = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/status'}"
    return Place(kind, rest, cluster or None, token_file, cafile)


# --- parsed, pure


@dataclass(frozen=True, slots=True)
class Work:
    """A record that is handled, or waits for a retry."""

    topic: str
    where: str
    key_hash: str
    attempt: int
    age_s: float


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """A partition of a processor."""

    topic: str
    partition: int
    offset: int | None
    lag: int | None
    in_flight: int
    failed: int
    is_paused: bool
    oldest: Work | None


@dataclass(frozen=True, slots=True)
class Processor:
    """One handler of a streams app."""

    name: str
    group: str
    reasons: tuple[str, ...]
    """Why it is not healthy."""
    numbers: Mapping[str, float]
    """Its counters and gauges, by the names in the status."""
    handled_per_s: float | None
    oldest: Work | None
    retrying: tuple[Work, ...]
    last_failure: str
    last_failure_s: float | None
    dead_letter_topic: str
    partitions: tuple[PartitionLine, ...]

    @property
    def lag(self) -> int | None:
        """Records to be handled, of the partitions where that is known."""
        known = [partition.lag for partition in self.partitions if partition.lag is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class StreamsApp:
    """A streams app."""

    name: str
    processors: tuple[Processor, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a pipeline."""

    name: str
    batch: int | None
    rows: int | None
    rows_per_s: float | None
    lag: int | None
    median_ms: float | None
    p95_ms: float | None
    max_ms: float | None
    watermark: str
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline, with its failure in one line."""

    name: str
    kind: str
    state: str
    failure: str
    updated_s: float | None
    queries: tuple[Query, ...]


def streams_app(document: Document, before: Document | None = None) -> StreamsApp:
    """Return an app as it says that it is; rates need the document before. Raises ValueError."""
    if not isinstance(document.get("processors"), list):
        raise ValueError("it does not answer with the status of a streams app")
    earlier = {_text(found, "name"): found for found in _tables(before or {}, "processors")}
    passed_s = (
        (_number(document, "monotonic_ms") or 0) - (_number(before or {}, "monotonic_ms") or 0)
    ) / 1_000
    return StreamsApp(
        _text(document, "app"),
        tuple(
            _processor(found, earlier.get(_text(found, "name")), passed_s)
            for found in _tables(document, "processors")
        ),
    )


def _processor(found: Document, before: Document | None, passed_s: float) -> Processor:
    numbers = {name: value for name in found if (value := _number(found, name)) is not None}
    handled, then = numbers.get("record_handled_total"), _number(before or {}, "record_handled_total")
    is_rate = handled is not None and then is not None and passed_s > 0 and handled >= then
    failure = _table(found, "last_failure")
    reasons = found.get("reasons")
    return Processor(
        _text(found, "name"), _text(found, "group"),
        tuple(str(reason)[:_MOST_TEXT] for reason in (reasons if isinstance(reasons, list) else ())[:20]),
        numbers,
        ((handled or 0) - (then or 0)) / passed_s if is_rate else None,
        _work(_table(found, "oldest")),
        tuple(work for part in _tables(found, "retrying")[:20] if (work := _work(part))),
        _text(failure, "text"), None if not failure else (_number(failure, "age_ms") or 0) / 1_000,
        _text(found, "dead_letter_topic"),
        tuple(map(_partition, _tables(found, "partitions")[:MOST_PARTITIONS])),
    )  # fmt: skip


def _partition(found: Document) -> PartitionLine:
    return PartitionLine(
        _text(found, "topic"), _whole(found, "partition") or 0, _whole(found, "offset"), _whole(found, "lag"),
        _whole(found, "in_flight") or 0, _whole(found, "failed") or 0, found.get("paused") is True,
        _work(_table(found, "oldest")),
    )  # fmt: skip


def _work(found: Document) -> Work | None:
    if not found:
        return None
    topic = _text(found, "topic")
    where = f"{topic}-{_whole(found, 'partition')} at {_whole(found, 'offset')}"
    age_s = (_number(found, "age_ms") or 0) / 1_000
    return Work(topic, where, _text(found, "key_hash"), _whole(found, "attempt") or 1, age_s)


def pipeline(document: Document, now_s: float) -> Pipeline:
    """Return a pipeline as it says that it is, or killed if it runs and is silent. Raises ValueError."""
    if not isinstance(document.get("queries"), dict):
        raise ValueError("it is not the status of a pipeline")
    state, updated_s = _text(document, "state") or "unknown", _number(document, "updated_s")
    silent_s = _number(document, "silent_after_s") or SILENT_S
    if state == "running" and now_s - (updated_s or 0) > silent_s:
        state = "killed"
    queries = tuple(
        _query(str(name), found) for name, found in document["queries"].items() if isinstance(found, dict)
    )
    failure = " ".join(_text(document, "error").split())
    return Pipeline(_text(document, "name"), _text(document, "kind"), state, failure, updated_s, queries)


def _query(name: str, found: Document) -> Query:
    times, counts = _table(found, "batch_ms"), _table(found, "counts")
    batch = _whole(found, "batch")
    return Query(
        name[:_MOST_TEXT], batch if batch is None or batch >= 0 else None, _whole(found, "rows"),
        _number(found, "rows_per_s"), _whole(found, "lag"), _number(times, "median"), _number(times, "p95"),
        _number(times, "max"), _text(found, "watermark"),
        {str(kind)[:100]: count for kind in list(counts)[:20] if (count := _whole(counts, kind)) is not None},
    )  # fmt: skip


def _text(found: Document, name: str) -> str:
    value = found.get(name)
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _number(found: Document, name: str) -> float | None:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < _MOST_NUMBER else None


def _whole(found: Document, name: str) -> int | None:
    value = _number(found, name)
    return None if value is None else int(value)


def _table(found: Document, name: str) -> Document:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _tables(found: Document, name: str) -> list[Document]:
    value = found.get(name)
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


# --- reading


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the address that was named."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def read_documents(place: Place) -> list[Document]:
    """Return the documents of a place, on a thread. Raises OSError, ValueError."""
    if place.is_address:
        return [_document(_fetched(place), place.at)]
    folder = Path(place.at)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {place.at}")
    files = sorted({*folder.glob("status.json"), *folder.glob("*/status.json")})[:MOST_PIPELINES]
    return [_document(found, str(file)) for file in files if (found := _of_file(file)) is not None]


def _of_file(file: Path) -> bytes | None:
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES)
    except FileNotFoundError:
        return None  # it was replaced meanwhile, or its folder was deleted


def _document(data: bytes, where: str) -> Document:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} does not hold JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where} does not hold a status")
    return found


def _fetched(place: Place) -> bytes:
    fields = {}
    if place.token_file is not None:
        fields["Authorization"] = f"Bearer {place.token_file.read_text(encoding='utf-8').strip()}"
    is_tls = place.at.startswith("https:")
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), urllib.request.ProxyHandler({})]
    if is_tls:
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=place.cafile)))
    request, ends_s = urllib.request.Request(place.at, headers=fields), monotonic_s() + READ_S
    data = bytearray()
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=READ_S) as answer:
            while part := answer.read1(1 << 16):
                data += part
                if len(data) > MOST_BYTES or monotonic_s() > ends_s:
                    raise ValueError(f"its status is longer than {MOST_BYTES} bytes, or comes too slowly")
    except urllib.error.HTTPError as error:
        error.close()
        why = ": it wants a token" if error.code == HTTPStatus.UNAUTHORIZED else ""
        raise ValueError(f"it answered {error.code}{why}") from None
    except HTTPException as error:
        raise ValueError(f"it does not speak HTTP ({type(error).__name__})") from None
    return bytes(data)


@dataclass(frozen=True, slots=True)
class Shown:
    """The apps or pipelines of a place; `sample` is None while nothing is known, and `failure` says why."""

    place: Place
    sample: Sample[tuple[StreamsApp | Pipeline, ...]] | None
    failure: str = ""


class Applications:
    """The places of the console; inside `async with` they can be asked."""

    def __init__(
        self, places: Iterable[Place], now_s: Callable[[], float], wall_s: Callable[[], float]
    ) -> None:
        self._places = tuple(places)
        self._now_s = now_s
        self._wall_s = wall_s
        self._tasks = asyncio.TaskGroup()
        self._before: dict[Place, Document] = {}
        self._sampled: dict[Place, Sampled[tuple[StreamsApp | Pipeline, ...]]] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        for place in self._places:
            self._sampled[place] = Sampled(self._asker(place), self._tasks, self._now_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sampled in self._sampled.values():
            sampled.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def of(self, cluster: str) -> list[Shown]:
        """Return the apps and pipelines on the page of a cluster."""
        places = [place for place in self._places if place.cluster in (None, cluster)]
        return list(await asyncio.gather(*map(self._shown, places)))

    async def _shown(self, place: Place) -> Shown:
        try:
            sample = await self._sampled[place].get()
        except NoSample as error:
            return Shown(place, None, str(error))
        return Shown(place, sample, sample.failure)

    def _asker(self, place: Place) -> Callable[[], Any]:
        async def ask() -> tuple[StreamsApp | Pipeline, ...]:
            documents = await asyncio.to_thread(read_documents, place)
            return tuple(self._parsed(place, documents))

        return ask

    def _parsed(self, place: Place, documents: list[Document]) -> Iterator[StreamsApp | Pipeline]:
        for document in documents:
            if place.kind == "pipelines":
                yield pipeline(document, self._wall_s())
            else:
                yield streams_app(document, self._before.get(place))
                self._before[place] = document
