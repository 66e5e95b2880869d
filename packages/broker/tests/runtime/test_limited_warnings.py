import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest
import uvloop

from ottla.broker.runtime.log_lines import LimitedWarnings, limited_transport_errors

log = logging.getLogger("limited")


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def warnings(time: Time) -> LimitedWarnings:
    return LimitedWarnings(log, lambda: time.now_s * 1000, every_ms=10_000, most_subjects=3)


def test_a_subject_is_named_once_per_interval_and_what_was_left_out_is_counted(
    time: Time, warnings: LimitedWarnings, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(25_000):
        time.now_s = 1000 + step / 1000
        warnings.warn("10.0.0.1", "connection closed", extra={"step": step})

    assert caplog.messages == ["connection closed"] * 3
    facts = [(vars(line)["step"], vars(line).get("more_not_logged")) for line in caplog.records]
    assert facts == [(0, None), (10_000, 9_999), (20_000, 9_999)]


def test_one_noisy_subject_does_not_hide_others(
    warnings: LimitedWarnings, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        warnings.warn("noisy", "from noisy")
    warnings.warn("quiet", "from quiet")

    assert caplog.messages == ["from noisy", "from quiet"]
    assert vars(caplog.records[1])["more_not_logged"] == 999


def test_many_subjects_cost_few_lines(
    time: Time, warnings: LimitedWarnings, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100_000):
        time.now_s = 1000 + number * 30 / 100_000
        warnings.warn(f"address {number}", "connection closed")

    assert len(caplog.messages) == 9


def test_a_rare_warning_is_always_logged(
    time: Time, warnings: LimitedWarnings, caplog: pytest.LogCaptureFixture
) -> None:
    times_s = [0, 10, 20.5, 31, 3600]
    for before_s, now_s in pairwise([-20, *times_s]):
        time.now_s += now_s - before_s
        warnings.warn("a", "fetch failed", extra={"at_s": now_s})

    assert [vars(line)["at_s"] for line in caplog.records] == times_s


class NoMemory(asyncio.BufferedProtocol):
    """A connection for which there is no memory to receive."""

    def get_buffer(self, sizehint: int) -> bytearray:
        raise MemoryError


def fail_connections(count: int, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def connect_all() -> None:
        loop = asyncio.get_running_loop()
        with limited_transport_errors(lambda: 0):
            server = await loop.create_server(NoMemory, "127.0.0.1", 0)
            async with server:
                port = server.sockets[0].getsockname()[1]
                for _ in range(count):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"x")
                    with suppress(ConnectionError):
                        assert await reader.read() == b""
                    writer.close()
        assert loop.get_exception_handler() is None

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(connect_all())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_connections_that_close_for_want_of_memory_are_logged_once_in_a_while(
    loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    fail_connections(20, loop)

    [line] = caplog.records
    assert line.getMessage() == "connection failed"
    assert line.exc_info
