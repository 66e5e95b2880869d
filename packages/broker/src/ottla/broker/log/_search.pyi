from ottla.broker.log.files import Mapping

def find_entry(
    fd: int,
    index: Mapping | bytes,
    count: int,
    relative_offset: int,
    end: int,
    offset: int,
    wait: bool,
) -> tuple[int, int, int, int] | None: ...
def whole_end(
    fd: int,
    index: Mapping | bytes,
    count: int,
    start: int,
    limit: int,
    stop: int,
    at_least_one: bool,
    wait: bool,
) -> tuple[int, int]: ...
def in_memory(fd: int, position: int, length: int) -> bool: ...
