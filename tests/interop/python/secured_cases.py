"""Cases of `test_secured_clients.py` for programs in Python: read from stdin, answered on stdout."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

RECORDS = 3
BOUND_S = 20
REFUSAL_BOUND_S = 8
"""For clients that go on trying where they are refused."""
STAY_S = 7
PAUSE_S = 0.25

Case = dict[str, str]


def cases() -> Iterator[Case]:
    """Return the cases: blocks of lines `key=value`."""
    for block in sys.stdin.read().strip().split("\n\n"):
        yield dict(line.split("=", 1) for line in block.splitlines())


def bound_s(case: Case) -> float:
    """Return how long a case may take: one that is to fail ends soon."""
    return BOUND_S if case["outcome"] == "ok" else REFUSAL_BOUND_S


class Complaints(logging.Handler):
    """The words that a client has logged: many raise a timeout, and log its reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += f" {record.getMessage()}"


def answer(case: Case, work: Callable[[], None]) -> None:
    """Do the work of a case; print its name with `ok`, or with the client's error."""
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    try:
        work()
    except Exception as error:
        words = f"{type(error).__name__} {error} LOGGED {complaints.text}"
        print(f"{case['case']}: {' '.join(words.split())}", flush=True)
    else:
        print(f"{case['case']}: ok", flush=True)
    finally:
        logging.getLogger().removeHandler(complaints)
