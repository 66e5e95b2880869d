"""`ottla perf`: measure a cluster with the clients of this house; the clients bring its commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from ottla.client.commands import ExtensibleGroup, show_json

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)


@click.group(
    cls=ExtensibleGroup,
    entry_point_group="ottla.perf.commands",
    packages={"produce": "ottla-producer", "consume": "ottla-consumer"},
)
def perf() -> None:
    """Measure how fast records are written and read, with percentiles of the latency."""


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of samples, and the largest: each is a sample that really was."""
    ordered = sorted(samples)
    if not ordered:
        return {}
    found = {f"p{at:g}": ordered[min(len(ordered) - 1, int(len(ordered) * at / 100))] for at in PERCENTILES}
    return found | {"max": ordered[-1]}


def report(
    verb: str, count: int, size: int, seconds: float, latencies_ms: Sequence[float], *, as_json: bool
) -> None:
    """Print records and megabytes per second, and the percentiles of latencies."""
    found = {name: round(value, 3) for name, value in percentiles(latencies_ms).items()}
    rate, megabytes = count / max(seconds, 1e-9), size / 1e6 / max(seconds, 1e-9)
    if as_json:
        show_json(
            {
                "records": count, "bytes": size, "seconds": round(seconds, 3),
                "records_per_second": round(rate), "megabytes_per_second": round(megabytes, 3),
                "latency_ms": found,
            }
        )  # fmt: skip
        return
    click.echo(f"{verb} {count} records in {seconds:.2f} s: {rate:,.0f} records/s, {megabytes:.2f} MB/s")
    if found:
        click.echo("latency in ms: " + ", ".join(f"{name} {value:g}" for name, value in found.items()))
