"""Building blocks of declarations: strict tables, topics, clusters, paths and durations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ottla.client.cluster import NoSuchTopic
from ottla.client.config import parse_bootstrap_servers
from ottla.client.errors import ClientError
from ottla.client.profiles import read_profile
from ottla.client.settings import SettingError
from ottla.pipeline.errors import OptionError, PipelineError, one_line
from ottla.pipeline.jobs.declaration_errors import Mistake
from ottla.pipeline.options import PROFILE, checkable, over_profile, passed_on
from ottla.producer import ProducerConfig
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import why_illegal_topic_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.pipeline.jobs.run import Run

__all__ = [
    "CONNECTION",
    "Job",
    "Mistake",
    "Names",
    "PathOrUrl",
    "Seconds",
    "Servers",
    "Settings",
    "Table",
    "TopicName",
    "Topics",
    "option_text",
    "relative_to",
]


_BACK = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?P=|\(\?\()")
_FLAG = re.compile(r"\(\?([aimsux]+)\)")
_FLAGS = re.compile(r"(?:\(\?[aimsux]+\))*")


def whole_name_pattern(pattern: str, but: Iterable[str] = ()) -> str:
    """Return an expression that matches whole names that `pattern` matches and no pattern in `but` does.

    Groups of `pattern` keep their numbers, and those of `but` change, so `but` must not contain
    backreferences.
    """
    wanted, refused = f"{_part(pattern)}$", "|".join(map(_part, but))
    return f"^(?={wanted})(?!(?:{refused})$)" if refused else f"^{wanted}"


def has_backreference(pattern: str) -> bool:
    """Whether a pattern has a backreference."""
    return _BACK.search(pattern) is not None


def _part(pattern: str) -> str:
    """Return a pattern for use inside a longer one: leading flags such as (?i) stay limited to it."""
    begins = _FLAGS.match(pattern)
    assert begins is not None, "the group may be empty"
    flags = "".join(_FLAG.findall(begins[0]))
    # With the flag x, a comment may extend to the end of the line, so the closing bracket is on the next one.
    end = "\n)" if "x" in flags else ")"
    return f"(?{flags}:{pattern[begins.end() :]}{end}"


_base: ContextVar[Path | None] = ContextVar("base", default=None)


@contextmanager
def relative_to(folder: Path) -> Iterator[None]:
    """Within this context, relative paths of declarations are relative to this folder, that of the file."""
    token = _base.set(folder)
    try:
        yield
    finally:
        _base.reset(token)


class ChosenProfile(NamedTuple):
    """The profile of a command; unless `preferred` it serves only where no brokers are named."""

    name: str
    preferred: bool


_chosen: ContextVar[ChosenProfile | None] = ContextVar("chosen", default=None)


@contextmanager
def connected_by(chosen: ChosenProfile | None) -> Iterator[None]:
    """Within this context, clusters of declarations without a profile of their own get the chosen one."""
    token = _chosen.set(chosen)
    try:
        yield
    finally:
        _chosen.reset(token)


CONNECTION = ("security.", "sasl.", "ssl.")
"""Prefixes of client settings that say how to connect to brokers."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?\s*")
_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}


def _placed(given: str) -> str:
    """Return an absolute path; a URL such as s3://lake/logs stays."""
    if not given.strip():
        raise ValueError("must not be empty")
    return given if _URI.match(given) else str(((_base.get() or Path.cwd()) / given).resolve())


def _seconds(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    match = _TIME.fullmatch(given)
    if match is None:
        raise ValueError(f"must be a time such as 200ms, 10s, 5m, 1h or 2d, not {given!r}")
    return float(match[1]) * _SECONDS[match[2]]


def _servers(given: str) -> str:
    """Reject an invalid list of brokers at its place in the declaration, with the client's message."""
    parse_bootstrap_servers(given)
    return given


def _topic(given: str) -> str:
    """Reject an invalid topic name without asking a broker."""
    if (why := why_illegal_topic_name(given)) is not None:
        raise ValueError(why)
    return given


def _names(given: Any) -> Any:
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given


def _flat(given: Any) -> Any:
    """Return dotted names for nested TOML: `kafka.security.protocol = ...` without quotes makes tables."""
    return dict(_pairs(given, "")) if isinstance(given, Mapping) else given


def _pairs(table: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _pairs(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


PathOrUrl = Annotated[str, AfterValidator(_placed)]
"""A file or folder, relative to the declaration, or a URL that Spark or Delta supports."""
Servers = Annotated[str, AfterValidator(_servers), Field(examples=["127.0.0.1:9092"])]
"""Brokers of a cluster: `host:port`, several separated by commas; the default port is 9092."""
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
"""A duration: `"10s"`, `"5m"`; a number is seconds."""
Names = Annotated[list[str], BeforeValidator(_names)]
"""Names: a list, or text separated by commas."""
TopicName = Annotated[str, AfterValidator(_topic)]
"""The name of a topic: ASCII letters, digits, `.`, `_` and `-`."""
TopicNames = Annotated[list[TopicName], BeforeValidator(_names)]
"""Names of topics: a list, or text separated by commas."""
Settings = Annotated[dict[str, Any], BeforeValidator(_flat)]
"""Settings of another system, by their dotted names, with or without quotes."""


class Table(BaseModel):
    """A table of a declaration. Raises pydantic's ValidationError with all mistakes at once."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, strict=True)


class ClusterTable(Table):
    """A cluster, by its brokers or by a profile."""

    bootstrap_servers: Servers | None = Field(default=None, examples=["127.0.0.1:9092"])
    """Brokers of the cluster. The default are those of the profile."""
    profile: str | None = Field(default=None, min_length=1, examples=["production"])
    """The profile with the brokers and the login, as `ottla profile add` makes it."""

    @model_validator(mode="before")
    @classmethod
    def _take_chosen_profile(cls, given: Any) -> Any:
        chosen = _chosen.get()
        if chosen is None or not isinstance(given, Mapping) or "profile" in given:
            return given
        if chosen.preferred:
            given = {name: value for name, value in given.items() if name != "bootstrap_servers"}
        return given if "bootstrap_servers" in given else {**given, "profile": chosen.name}

    @property
    def servers(self) -> str | None:
        """The brokers that the table or its profile names; None if neither does."""
        if self.bootstrap_servers is not None or self.profile is None:
            return self.bootstrap_servers
        try:
            return read_profile(self.profile).servers
        except SettingError:
            return None

    def inspect_cluster(self) -> Iterator[Mistake]:
        """Yield a profile that cannot be used, and missing brokers."""
        if self.profile is not None:
            try:
                read_profile(self.profile).check()
            except SettingError as error:
                yield Mistake(("profile",), str(error))
                return
        if self.servers is None:
            missing = "is missing" if self.profile is None else f"is missing in profile {self.profile!r}, too"
            yield Mistake(("bootstrap_servers",), f'{missing}: bootstrap_servers = "127.0.0.1:9092"')


class Topics(ClusterTable):
    """The topics that a pipeline reads."""

    topics: TopicNames = Field(default_factory=list, examples=[["orders"]])
    pattern: str | None = Field(None, min_length=1)
    """Instead of names: a regular expression that has to match whole names."""
    starting_offsets: str = "earliest"
    """The start of a pipeline without a checkpoint: earliest, latest, or JSON as in Spark."""
    max_records_per_batch: int | None = Field(None, ge=1)
    options: Settings = Field(default_factory=dict)
    """Any other option of the data source `ottla`, including `kafka.*` for the client."""

    def inspect(self) -> Iterator[Mistake]:
        """Yield the mistakes that the data source would reject; paths are within this table."""
        if wrong := list(self.inspect_cluster()):
            yield from wrong
            return
        if bool(self.topics) == (self.pattern is not None):
            yield Mistake(("topics",), 'needs topics = ["orders"] or a pattern, but not both')
            return
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            yield Mistake(("pattern",), f"is not a regular expression: {error}")
            return
        left = self
        while (refused := left._refused()) is not None:
            # The data source reports one error at a time: find the setting without which it disappears.
            for path, without in left._each_left_out():
                if without._refused() != refused:
                    yield Mistake(path, refused)
                    left = without._without_connection() if _is_connection(path[-1]) else without
                    break
            else:
                yield Mistake(("options",), refused)
                return

    def _refused(self) -> str | None:
        from ottla.pipeline.source.config import SourceConfig

        try:
            SourceConfig.of(checkable(self.stream_options()), streaming=True).consumer_config()
        except ValueError as error:
            return str(error)
        return None

    def _each_left_out(self) -> Iterator[tuple[tuple[str, ...], Topics]]:
        yield ("starting_offsets",), self.model_copy(update={"starting_offsets": "earliest"})
        for left_out in self.options:
            others = {name: value for name, value in self.options.items() if name != left_out}
            yield ("options", left_out), self.model_copy(update={"options": others})

    def _without_connection(self) -> Topics:
        """Drop the connection settings: if one of them is missing, the others have no meaning."""
        others = {name: value for name, value in self.options.items() if not _is_connection(name)}
        return self.model_copy(update={"options": others})

    def reads(self, topic: str) -> bool:
        """Whether the pipeline reads a topic."""
        try:
            return topic in self.topics or re.fullmatch(self.pattern or "", topic) is not None
        except re.error:
            return False

    def stream_options(self) -> dict[str, str]:
        """Return the options for `readStream`."""
        most = self.max_records_per_batch
        return self.batch_options() | ({} if most is None else {"maxOffsetsPerTrigger": str(most)})

    def batch_options(self) -> dict[str, str]:
        """Return the options for `read`."""
        named = {"subscribe": ",".join(self.topics)}
        # The data source matches its pattern anywhere in a name, like Spark's own.
        what = named if self.topics else {"subscribePattern": whole_name_pattern(self.pattern or "")}
        own = {"startingOffsets": self.starting_offsets}
        if self.bootstrap_servers is not None:
            own["kafka.bootstrap.servers"] = self.bootstrap_servers
        if self.profile is not None:
            own[PROFILE] = self.profile
        return own | what | {name: option_text(value) for name, value in self.options.items()}

    def properties(self) -> dict[str, str]:
        """Return Kafka's settings for one of our clients, and `profile` for those below them."""
        options = {name.lower(): value for name, value in self.batch_options().items()}
        return {
            name.removeprefix("kafka."): text
            for name, text in options.items()
            if name.startswith("kafka.") or name == PROFILE
        }

    def stream(self, spark: SparkSession, more: Mapping[str, str] | None = None) -> DataFrame:
        """Return the topics as a stream; `more` options take precedence."""
        return spark.readStream.format("ottla").options(**{**self.stream_options(), **(more or {})}).load()

    def batch(self, spark: SparkSession, more: Mapping[str, str] | None = None) -> DataFrame:
        """Return the topics as a table; `more` options take precedence."""
        return spark.read.format("ottla").options(**{**self.batch_options(), **(more or {})}).load()


def _is_connection(option: str) -> bool:
    return option.lower().removeprefix("kafka.").startswith(CONNECTION)


def option_text(value: Any) -> str:
    """Return a value as text, for options of Spark and settings of Kafka."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Job(Table):
    """A pipeline. `ottla pipeline list` shows the first line of a subclass's docstring."""

    kind: str
    name: str = Field(examples=["access-logs"], pattern=r"^[A-Za-z0-9._-]+$")
    checkpoint: PathOrUrl = Field(examples=["state/access-logs"])
    """The folder that stores the progress of the pipeline. With another one it begins from the start."""
    trigger: Seconds = 10.0
    """The interval between looks for new records."""
    spark: Settings = Field(default_factory=dict)
    """Settings of Spark; `master` says where it runs."""

    adds_up: ClassVar[bool] = False
    """Whether the rows of several queries add up, because they do not read the same records."""

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes beyond the types of single values. Uses no network and no Spark."""
        yield from ()

    def run(self, run: Run) -> None:
        """Run until all existing records are processed (`run.once`), or until `run.stopping`."""
        raise NotImplementedError


class Target(ClusterTable):
    """A cluster that a pipeline writes to."""

    options: Settings = Field(default_factory=dict)
    """Settings of the client, under Kafka's names with the prefix `kafka.`."""

    def properties(self) -> dict[str, str]:
        """Return Kafka's settings for a client, and `profile` for those below them."""
        given = {name.lower().removeprefix("kafka."): _text(value) for name, value in self.options.items()}
        named = {"bootstrap.servers": self.bootstrap_servers, PROFILE: self.profile}
        return {name: text for name, text in named.items() if text is not None} | given

    def producer_config(self) -> ProducerConfig:
        """Return the settings of a producer. Raises OptionError."""
        settings = self.properties()
        return _producer_config(over_profile(settings.pop(PROFILE, None), settings))

    def inspect(self) -> Iterator[Mistake]:
        """Yield the mistakes that a producer would reject; paths are within this table."""
        for name in self.options:
            if not name.lower().startswith("kafka."):
                yield Mistake(("options", name), f"must begin with kafka.: kafka.{name}")
                return
        if wrong := list(self.inspect_cluster()):
            yield from wrong
            return
        options = {
            (name if name == PROFILE else f"kafka.{name}"): text for name, text in self.properties().items()
        }
        try:
            _producer_config(passed_on(checkable(options)))
        except OptionError as error:
            yield Mistake(("options",), str(error))


def _producer_config(settings: Mapping[str, str]) -> ProducerConfig:
    try:
        return ProducerConfig.from_properties(settings)
    except ValueError as error:
        raise OptionError(str(error)) from None


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Within this context, errors of clients and brokers become a PipelineError of one line."""
    try:
        yield
    except NoSuchTopic as error:  # the cluster works; the declared topic does not exist
        raise PipelineError(one_line(error)) from error
    except (ClientError, KafkaError, TimeoutError) as error:
        raise PipelineError(f"a cluster failed: {one_line(error)} ({type(error).__name__})") from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
