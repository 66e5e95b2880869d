"""Time, the event loop's budget, the garbage collector, threads, tasks and logging of a broker."""

__all__: list[str] = []
