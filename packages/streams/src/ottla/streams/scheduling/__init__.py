"""The order and the bounds of work: lanes, frontier, finished offsets, intake budgets. Pure.

`Scheduler` is what a processor uses. It takes records, completions, assignments and the time, and says which
work may run, which partitions must be paused, and what may be committed.
"""

__all__: list[str] = []
