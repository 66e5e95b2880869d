"""The plan and the checks of transactions_chaos.py: each check finds what it is for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from transactions_checks import miscopied, misread
from transactions_plan import BROKER, CLIENT, COORDINATOR, plan

SOURCE = {0: {0: ("w", 0), 1: ("w", 2), 2: ("w", 4)}, 1: {0: ("w", 1)}}
COPY = {0: {0: ("0@w", 0), 2: ("1@w", 2), 3: ("2@w", 4)}, 1: {5: ("0@w", 1)}}


def journal(folder: Path, *lines: str) -> Path:
    file = folder / "reader.journal"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_a_copy_of_everything_in_order_is_right() -> None:
    assert miscopied(SOURCE, COPY, "java") == []


@pytest.mark.parametrize(
    ("copies", "complaint"),
    [
        ({0: ("0@w", 0), 2: ("1@w", 2)}, "1 LOST, first [(2, 'w', 4)]; 0 DOUBLED"),
        ({0: ("0@w", 0), 2: ("1@w", 2), 3: ("1@w", 2), 4: ("2@w", 4)}, "0 LOST, first []; 1 DOUBLED"),
        ({0: ("1@w", 2), 2: ("0@w", 0), 3: ("2@w", 4)}, "out of order from (1, 'w', 2) on"),
        ({0: ("0@w", 0), 2: ("1@w", 3), 3: ("2@w", 4)}, "1 LOST, first [(1, 'w', 2)]; 1 DOUBLED or strange"),
    ],
)
def test_a_copy_that_lacks_doubles_or_swaps_records_is_wrong(
    copies: dict[int, tuple[str, int]], complaint: str
) -> None:
    (found,) = miscopied(SOURCE, {**COPY, 0: copies}, "java")

    assert found.startswith("java copied partition 0 wrongly: ")
    assert complaint in found


def test_a_partition_that_was_not_copied_at_all_is_lost() -> None:
    assert "1 LOST" in miscopied(SOURCE, {0: COPY[0]}, "java")[0]


def test_a_reader_is_given_what_is_committed_once_and_in_order(tmp_path: Path) -> None:
    right = ("0 0 0@w 0", "1 5 0@w 1", "0 2 1@w 2", "0 3 2@w 4")
    assert misread(COPY, journal(tmp_path, *right, "end")) == []

    for lines, complaint in (
        (("0 1 1@w 2", *right), "1 records that are not committed, first [(1, '1@w', 2)]"),
        ((*right, right[0]), "1 records that are not committed"),
        (right[:-1], "0 records that are not committed, first []; 1 not read, first [(3, '2@w', 4)]"),
        ((right[3], *right[:3]), "reader read partition 0 wrongly: 0 records"),
    ):
        assert complaint in misread(COPY, journal(tmp_path, *lines))[0]


def test_every_kind_of_client_has_its_share_of_each_kill() -> None:
    kinds = ("java", "ottla")

    planned = plan(kinds, 80, seed=1)

    assert planned == plan(kinds, 80, seed=1)
    assert planned != plan(kinds, 80, seed=2)
    assert [each.number for each in planned] == list(range(1, 81))
    counts = Counter((each.kind, each.victim) for each in planned)
    for kind in kinds:
        assert (counts[kind, CLIENT], counts[kind, BROKER], counts[kind, COORDINATOR]) == (20, 10, 10)
    assert {each.victim for each in plan(kinds, 10, seed=1, victims=[CLIENT])} == {CLIENT}
