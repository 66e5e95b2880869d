"""The page of measurements says what its figures say, and a benchmark that fails is a line of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import comparison_page
from comparison import (
    HEADLINES,
    PARTS,
    Comparison,
    Measured,
    headlines,
    merged,
    render,
    table,
    times,
    with_headlines,
)
from figures import Figure, keep, kept, ratio, spread

OURS = Figure("Producers", "CPU", "s", "ottla", (1.0, 2.0, 4.0))
THEIRS = Figure("Producers", "CPU", "s", "aiokafka", (10.0, 30.0, 44.0))
MEASURED = Measured(
    "producers", "2026-02-01 10:00", "abc", True, 0.1, 61, "producer_sdk.py", "", (OURS, THEIRS)
)
COMPARISON = Comparison(
    {"processor": "P", "cores": "2", "memory": "4 GiB", "system": "Linux 6"}, {}, (MEASURED,)
)


def published() -> Comparison:
    found = comparison_page.load()
    assert found is not None
    return found


def test_the_page_is_rendered_from_the_figures_that_are_published_with_it() -> None:
    assert comparison_page.PAGE.read_text(encoding="utf-8") == render(published())


def test_the_numbers_of_the_first_page_are_those_of_the_figures() -> None:
    shown = comparison_page.FIRST_PAGE.read_text(encoding="utf-8")

    assert shown == with_headlines(shown, published())
    assert len(headlines(published())) > 5


def test_each_part_of_the_page_is_published_with_its_command_and_each_headline_names_a_part() -> None:
    page = comparison_page.PAGE.read_text(encoding="utf-8")

    assert [part.name for part in published().parts] == [part.name for part in PARTS]
    assert all(f"$ python benchmarks/{part.script}.py" in page for part in PARTS)
    assert {headline.part for headline in HEADLINES} <= {part.name for part in PARTS}


def test_the_scripts_of_the_page_exist() -> None:
    scripts = [comparison_page.HERE / part.command(is_quick=True)[0] for part in PARTS]

    assert [script for script in scripts if not script.exists()] == []


def test_a_ratio_is_the_median_of_the_ratios_within_rounds() -> None:
    assert ratio(THEIRS, OURS) == 11.0  # of 10, 15 and 11; the ratio of the medians is 15


def test_where_a_round_is_missing_the_ratio_is_that_of_the_medians() -> None:
    assert ratio(replace(THEIRS, values=(10.0, 30.0)), OURS) == 10.0


def test_a_figure_of_nothing_has_no_ratio_to_others() -> None:
    none = replace(OURS, values=(0.0, 0.0, 0.0))

    assert table([none, THEIRS])[-1] == "| CPU, s | 0 | 30.0 (10.0 to 44.0) |"


def test_a_cell_has_the_median_the_spread_and_the_ratio() -> None:
    assert table([OURS, THEIRS]) == [
        "| Measure | ottla | aiokafka |",
        "|---|---|---|",
        "| CPU, s | 2.00 (1.00 to 4.00) | 30.0 (10.0 to 44.0); 11 × |",
    ]


def test_many_subjects_are_rows_and_one_without_a_figure_has_a_dash() -> None:
    others = [replace(THEIRS, subject=name) for name in ("a", "b")]
    memory = replace(OURS, measure="memory", unit="MiB")

    lines = table([OURS, THEIRS, *others, memory])

    assert lines[0] == "| Subject | CPU, s | memory, MiB |"
    assert lines[2] == "| ottla | 2.00 (1.00 to 4.00) | 2.00 (1.00 to 4.00) |"
    assert lines[-1] == "| b | 30.0 (10.0 to 44.0); 11 × | – |"


@pytest.mark.parametrize(
    ("values", "shown"),
    [((0.1234,), "0.123"), ((12.34,), "12.3"), ((1234567.8,), "1,234,568"), ((1.0, 1.001), "1.00")],
)
def test_a_figure_has_three_digits_that_count(values: tuple[float, ...], shown: str) -> None:
    assert spread(values) == shown


def test_a_ratio_is_short() -> None:
    assert [times(0.5), times(2.345), times(1234.5)] == ["0.500 ×", "2.35 ×", "1,234 ×"]


def test_a_part_that_failed_is_a_line_and_the_others_are_shown() -> None:
    late = replace(MEASURED, name="spark", failure="did not end within 5 s", figures=())

    page = render(replace(COMPARISON, parts=(MEASURED, late)))

    assert "**Not complete**: it did not end within 5 s." in page
    assert "| CPU, s | 2.00 (1.00 to 4.00) |" in page


def test_a_page_that_was_measured_on_a_busy_machine_says_so() -> None:
    busy = replace(COMPARISON, parts=(replace(MEASURED, load=7.5),))

    assert "**The machine was busy**" in render(busy)
    assert "busy with other work" in headlines(busy)[-1]
    assert "busy" not in render(COMPARISON) + headlines(COMPARISON)[-1]


def test_one_part_that_is_measured_again_keeps_the_others_in_their_order() -> None:
    before = replace(COMPARISON, parts=(MEASURED, replace(MEASURED, name="spark")))
    again = replace(MEASURED, date="2026-02-02 10:00")

    found = merged(before, replace(COMPARISON, parts=(again,)))

    assert [(part.name, part.date) for part in found.parts] == [
        ("producers", "2026-02-02 10:00"), ("spark", "2026-02-01 10:00"),
    ]  # fmt: skip


def test_a_part_that_was_measured_on_another_machine_names_it() -> None:
    before = replace(COMPARISON, parts=(MEASURED, replace(MEASURED, name="spark")))
    again = replace(MEASURED, date="2026-02-02 10:00")
    other = {**COMPARISON.machine, "processor": "Q"}

    found = merged(before, replace(COMPARISON, machine=other, parts=(again,)))

    assert [part.machine for part in found.parts] == ["", "P, 2 cores, 4 GiB, Linux 6"]
    page = render(found)
    assert "- **Machine**: Q, 2 cores, 4 GiB, Linux 6." in page
    assert "in 61 s on P, 2 cores, 4 GiB, Linux 6; the machine's load" in page
    assert "on more than one machine: " in headlines(found)[-1]


def test_a_first_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        with_headlines("# Ottla\n", COMPARISON)


def test_figures_that_a_benchmark_keeps_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_FIGURES", str(tmp_path / "figures"))

    keep([OURS, replace(OURS, values=())])
    keep([THEIRS])

    assert kept(tmp_path / "figures") == [OURS, THEIRS]
    assert kept(tmp_path / "nothing") == []


def test_a_benchmark_that_fails_says_with_which_exit_code(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "raise SystemExit(3)"]

    assert comparison_page.bounded(program, tmp_path / "figures", 60) == "ended with exit code 3"


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_benchmark_that_is_late_is_ended_with_the_processes_it_started(tmp_path: Path) -> None:
    """It keeps what it had measured; a child that goes on without it would disturb the next part."""
    note = tmp_path / "child"
    code = (
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "child.wait()\n"
    )
    program = [sys.executable, "-c", code]

    # Long enough that the child is there on any machine that this runs on, and checked below.
    failure = comparison_page.bounded(program, tmp_path / "figures", 5)

    assert failure == "did not end within 5 s"
    # Killed; it is a zombie until the first process of the machine takes notice of it.
    assert not runs(int(note.read_text()))
