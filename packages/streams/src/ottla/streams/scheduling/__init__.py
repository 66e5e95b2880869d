"""The order and the bounds of work: lanes, frontier, finished offsets, intake budgets. Pure."""
