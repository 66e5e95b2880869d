from __future__ import annotations

from ottla.client.commands.perf import percentiles


def test_percentiles_are_samples_that_really_were() -> None:
    samples = [float(number) for number in range(1, 1_001)]
    assert percentiles(samples[::-1]) == {"p50": 501, "p95": 951, "p99": 991, "p99.9": 1_000, "max": 1_000}
    assert percentiles([7.0]) == dict.fromkeys(("p50", "p95", "p99", "p99.9", "max"), 7.0)
    assert percentiles([]) == {}
