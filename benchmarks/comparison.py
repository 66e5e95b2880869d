"""Parts of the page that compares with others, and how their figures are shown: nothing here measures.

`measured.json` holds the figures of all rounds. The page, and the table of the first page of the docs, are
rendered from that file alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from figures import Figure, number, ratio, spread

COMMAND = "nox -s bench -- page"
# With more subjects than these, each has a row and not a column.
MOST_COLUMNS = 3
# Where a machine has more to do before a benchmark begins, its page says so.
MOST_LOAD = 1.0


@dataclass(frozen=True)
class Part:
    """One benchmark of the page: its script, its options for a quick and a whole run, and its bounds."""

    name: str
    title: str
    about: str
    script: str
    options: tuple[str, ...]
    quick: tuple[str, ...]
    whole: tuple[str, ...]
    quick_bound_s: float
    bound_s: float
    takes_peers: bool = False

    def command(self, *, is_quick: bool) -> list[str]:
        """Return what one types after `python benchmarks/` to run this part alone."""
        return [f"{self.script}.py", *self.options, *(self.quick if is_quick else self.whole)]


@dataclass(frozen=True)
class Measured:
    """The figures of a run of a part, and its time; `failure` says why it has no figures, or not all."""

    name: str
    date: str
    commit: str
    is_quick: bool
    load: float
    took_s: float
    command: str
    failure: str
    figures: tuple[Figure, ...]
    machine: str = ""
    """The machine, where it is not that of the page."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Measured:
        return cls(**{**found, "figures": tuple(map(Figure.from_json, found["figures"]))})


@dataclass(frozen=True)
class Comparison:
    """All that the page is rendered from."""

    machine: dict[str, str]
    versions: dict[str, str]
    parts: tuple[Measured, ...]

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Comparison:
        return cls(found["machine"], found["versions"], tuple(map(Measured.from_json, found["parts"])))


def _only(*texts: str) -> tuple[str, ...]:
    return tuple(part for text in texts for part in ("--only", text))


PARTS = (
    Part(
        "brokers", "Brokers",
        "Each broker by itself, one partition, written and read by confluent-kafka; a JVM has 1 GB of heap, "
        "and works a while under load before what it does counts.",
        "broker_end_to_end", _only("start", "latency", "rates"),
        ("--quick", "--rounds", "2"), ("--rounds", "3"), 420, 1200,
    ),
    Part(
        "protocols", "Groups, queues and transactions",
        "A rebalance is that of the consumer protocol: members heartbeat when the broker asks them to, and "
        "one change follows on another, as when programs are started anew one by one. What was not read are "
        "the records of partitions without an owner, at ten a second in each.",
        "new_protocols", (), ("--quick", "--rounds", "1"), ("--rounds", "3"), 600, 1800,
    ),
    Part(
        "producers", "Producers",
        "Processor time of the client's process until all is acknowledged (acks=all, idempotent, 5 ms of "
        "linger). The broker is Ottla's.",
        "producer_sdk",
        (*_only("ottla await send(key) (asyncio)", "ottla send_many(keys) (asyncio)",
                "confluent produce(key, on_delivery)", "aiokafka await send(key)", "kafka-python send(key)"),
         "--size", "100"),
        ("--quick", "--rounds", "3"), ("--rounds", "5"), 240, 600,
    ),
    Part(
        "consumers", "Consumers",
        "Processor time of the client's process that reads a topic of eight partitions and each value.",
        "consumer_sdk",
        (*_only("ottla getmany (asyncio)", "ottla async for (asyncio)", "ottla Arrow (asyncio)",
                "confluent consume(500)", "aiokafka getmany (asyncio)", "aiokafka async for (asyncio)",
                "kafka-python poll"), "--size", "100"),
        ("--quick", "--rounds", "3"), ("--rounds", "5"), 240, 600,
    ),
    Part(
        "latency", "One record at a time",
        "Nothing lingers: until a record is acknowledged, and until a consumer of the same client has it.",
        "client_latency",
        _only("ottla, send and wait (asyncio)", "ottla, produce to consume (asyncio)", "confluent",
              "aiokafka, send and wait (asyncio)", "aiokafka, produce to consume (asyncio)", "kafka-python"),
        ("--quick", "--rounds", "3"), ("--rounds", "5"), 240, 600,
    ),
    Part(
        "streams", "Stream processing",
        "Applications that call a handler for each record, a thousand at once where they can, beside the "
        "same broker, Ottla's. *Out of order* are records handled before an earlier one of their key.",
        "streams_peers", ("--scenario", "noop", "--scenario", "100ms"),
        # Its own `--quick` is too short for a JVM to be done with compiling.
        ("--rounds", "2"), ("--rounds", "3"), 720, 1200, takes_peers=True,
    ),
    Part(
        "spark", "Spark",
        "Batch jobs of one Spark with two cores: a topic read into nothing, and rows written to a topic.",
        "spark_source", (*_only("read", "write"), "--size", "100"),
        ("--quick",), ("--rounds", "3"), 420, 900,
    ),
)  # fmt: skip


# --- rendering


_INTRODUCTION = f"""# Measured beside others

`{COMMAND}` installs what it compares, runs it in turns on one machine, and writes this page and
[the figures of every round](measured.json). With `--quick` it takes a quarter of an hour, with a tenth of the
records. Run it on your machine before you believe it.

A cell is the median of the rounds, with the least and the most in brackets. Behind it stands how many times
the first one's figure it is, the median of the ratios within rounds: what else the machine does is in both.
Processor time depends less on that than rates do.
"""


def render(comparison: Comparison) -> str:
    """Render the whole page."""
    return "\n".join(_lines(comparison)).rstrip() + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield from _INTRODUCTION.splitlines()
    yield ""
    yield from _facts(comparison)
    titles = {part.name: part for part in PARTS}
    for measured in comparison.parts:
        yield from _section(titles[measured.name], measured)


def _facts(comparison: Comparison) -> Iterator[str]:
    yield f"- **Machine**: {_words(comparison.machine)}."
    listed = ", ".join(f"{name} {number}" for name, number in comparison.versions.items())
    yield f"- **Versions**: {listed}."
    yield ""


def _words(told: Mapping[str, str]) -> str:
    return f"{told['processor']}, {told['cores']} cores, {told['memory']}, {told['system']}"


def _section(part: Part, measured: Measured) -> Iterator[str]:
    yield f"## {part.title}"
    yield ""
    yield part.about
    yield ""
    yield "<!-- not run: it takes minutes, and its figures differ from run to run -->"
    yield "```console"
    yield f"$ python benchmarks/{measured.command}"
    yield "```"
    yield ""
    kind = "A quick run" if measured.is_quick else "A whole run"
    yield (
        f"{kind} on {measured.date} UTC at commit {measured.commit}, in {measured.took_s:.0f} s"
        f"{f' on {measured.machine}' if measured.machine else ''}; "
        f"the machine's load before it was {measured.load:g}."
    )
    yield ""
    if measured.load > MOST_LOAD:
        yield "**The machine was busy** with other work: rates and latencies say little, processor time more."
        yield ""
    if measured.failure:
        yield f"**Not complete**: it {measured.failure}."
        yield ""
    for title, figures in _by_table(measured.figures).items():
        yield f"{title[0].upper()}{title[1:]}:"
        yield ""
        yield from table(figures)
        yield ""


def _by_table(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(figure.table, []).append(figure)
    return found


def table(figures: Sequence[Figure]) -> list[str]:
    """Render the figures of one table: few subjects are its columns, many its rows."""
    cells = {((found.measure, found.unit), found.subject): found for found in figures}
    subjects = list(dict.fromkeys(found.subject for found in figures))
    measures = list(dict.fromkeys((found.measure, found.unit) for found in figures))

    def cell(measure: tuple[str, str], subject: str) -> str:
        found, first = cells.get((measure, subject)), cells.get((measure, subjects[0]))
        if found is None:
            return "–"
        beside = (
            f"; {times(ratio(found, first))}" if first and subject != subjects[0] and first.median else ""
        )
        return f"{spread(found.values)}{beside}"

    if len(subjects) <= MOST_COLUMNS:
        header = ("Measure", *subjects)
        rows = [
            (", ".join(measure), *(cell(measure, subject) for subject in subjects)) for measure in measures
        ]
    else:
        header = ("Subject", *(", ".join(measure) for measure in measures))
        rows = [(subject, *(cell(measure, subject) for measure in measures)) for subject in subjects]
    return [_row(header), "|" + "---|" * len(header), *map(_row, rows)]


def times(value: float) -> str:
    """Write a ratio."""
    return f"{number(value) if value < 10 else format(value, ',.0f')} ×"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# --- the first page of the docs


@dataclass(frozen=True)
class Headline:
    """One line of the first page: a measure of a part, of ours, and of others by their names there."""

    words: str
    part: str
    measure: str
    ours: str
    others: tuple[tuple[str, str], ...]


_KAFKAS = (("Kafka 4.4", "kafka 4.4"), ("Kafka 3.9", "kafka 3.9"))
HEADLINES = (
    Headline(
        "A broker from its start to the first record that is safe", "brokers",
        "start to first acknowledged record", "ottla", _KAFKAS,
    ),
    Headline(
        "Memory of a broker without load", "brokers", "idle memory", "ottla",
        _KAFKAS,
    ),
    Headline(
        "From producer to consumer at 1,000 records a second, median", "brokers",
        "produce to consume, 1,000/s, p50", "ottla", _KAFKAS,
    ),
    Headline(
        "Processor time to read a gigabyte of records of 1,000 B, in the broker", "brokers",
        "consume 1000 B, broker's CPU", "ottla", _KAFKAS,
    ),
    Headline(
        "A thousand consumers start in ten groups, until each has its partitions", "protocols",
        "start: stable after", "ottla", _KAFKAS,
    ),
    Headline(
        "Records a second through a queue with a hundred consumers", "protocols", "read and accepted",
        "ottla", _KAFKAS,
    ),
    Headline(
        "Processor time of a client to send a million records with keys", "producers",
        "client's CPU per million", "ottla await send(key) (asyncio)",
        (("confluent-kafka", "confluent produce(key, on_delivery)"),
         ("aiokafka", "aiokafka await send(key) (asyncio)"), ("kafka-python", "kafka-python send(key)")),
    ),
    Headline(
        "Processor time of a client to read a million records", "consumers", "client's CPU per million",
        "ottla async for (asyncio)",
        (("confluent-kafka", "confluent consume(500)"), ("aiokafka", "aiokafka async for (asyncio)"),
         ("kafka-python", "kafka-python poll")),
    ),
    Headline(
        "Processor time of a stream application for each record", "streams", "CPU per record",
        "ottla.streams",
        (("Confluent Parallel Consumer", "Confluent Parallel Consumer"), ("faust", "faust-streaming"),
         ("Quix Streams", "quixstreams")),
    ),
    Headline(
        "Rows a second from a topic into Spark", "spark", "topic to noop, 100 B", "ottla",
        (("Spark's own connector", "Spark's Kafka connector"),),
    ),
)  # fmt: skip
BEGIN = "<!-- measured: `nox -s bench -- page` writes what stands from here to the end mark -->"
END = "<!-- end of measured -->"


def headlines(comparison: Comparison) -> list[str]:
    """Render the table of the first page: one line for each headline that was measured."""
    found = {part.name: part for part in comparison.parts}
    rows = [
        row
        for headline in HEADLINES
        if headline.part in found and (row := _headline(headline, found[headline.part].figures))
    ]
    dates = sorted(part.date.split()[0] for part in comparison.parts)
    busy = any(part.load > MOST_LOAD for part in comparison.parts)
    how = ", which was busy with other work" if busy else ""
    told = comparison.machine
    machines = f"{told['cores']} cores of {told['processor']}"
    if any(part.machine for part in comparison.parts):
        machines = "more than one machine"
    return [
        _row(("What", "Ottla", "Others")), "|---|---|---|", *map(_row, rows), "",
        f"`{COMMAND}` measured this on {dates[-1] if dates else 'no day'}, on {machines}"
        f"{how}: [every figure, its spread and its command](reference/measured.md).",
    ]  # fmt: skip


def _headline(headline: Headline, figures: Iterable[Figure]) -> tuple[str, ...] | None:
    by_subject: dict[str, Figure] = {}
    for figure in figures:
        if figure.measure == headline.measure:
            by_subject.setdefault(figure.subject, figure)
    ours = by_subject.get(headline.ours)
    if ours is None:
        return None
    others = [
        f"{name} {_amount(by_subject[subject])} ({times(ratio(by_subject[subject], ours))})"
        for name, subject in headline.others
        if subject in by_subject
    ]
    return headline.words, _amount(ours), ", ".join(others)


def _amount(figure: Figure) -> str:
    return f"{number(figure.median)} {figure.unit}"


def with_headlines(page: str, comparison: Comparison) -> str:
    """Put the table between its marks into the first page of the docs."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"the first page of the docs needs the lines {BEGIN} and {END}")
    return "\n".join([f"{before}{BEGIN}", "", *headlines(comparison), "", f"{END}{after}"])


def merged(before: Comparison | None, after: Comparison) -> Comparison:
    """Add parts that were measured before and not now, in the order of the page, with their machine."""
    earlier = before.parts if before else ()
    if before is not None and before.machine != after.machine:
        earlier = tuple(replace(part, machine=part.machine or _words(before.machine)) for part in earlier)
    found = {part.name: part for part in (*earlier, *after.parts)}
    return replace(after, parts=tuple(found[part.name] for part in PARTS if part.name in found))
