"""Worker processes: one that dies or hangs fails its own call, and the others go on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.streams.errors import InvalidHandler, RecordUndecodable, RemoteError, WorkerProcessDied
from ottla.streams.handlers.function_handler import NOT_STARTED_MS, FunctionHandler
from peers.stream_handlers import TwoPartError, work, work_all
from peers.stream_works import OneWork

WAIT_S = 60.0


class Sent:
    """Keeps what handlers send."""

    def __init__(self) -> None:
        self.records: list[ProducerRecord] = []

    async def send(self, work: object, record: ProducerRecord) -> None:
        self.records.append(record)


def job(do: str, file: Path | str = "") -> OneWork:
    return OneWork([ConsumerRecord("jobs", 0, 4, 1, b"k", f'{{"do": "{do}", "file": "{file}"}}'.encode())])


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
async def handler(sent: Sent) -> AsyncIterator[FunctionHandler]:
    async with asyncio.timeout(WAIT_S * 2):
        async with FunctionHandler(work, sent, run_on="processes", max_processes=2) as handler:
            yield handler


async def test_a_handler_on_a_process_gets_its_record_and_emits(handler: FunctionHandler, sent: Sent) -> None:
    await handler(job("emit"))

    (record,) = sent.records
    assert (record.topic, record.key) == ("done", b"k")
    assert int(record.value) in handler.pids()


async def test_exceptions_cross_with_their_class_and_where_they_were_raised(handler: FunctionHandler) -> None:
    with pytest.raises(ValueError, match="no such job") as plain:
        await handler(job("fail"))
    with pytest.raises(RemoteError, match="TwoPartError: half full") as strange:
        await handler(job("fail strangely"))
    with pytest.raises(SystemExit) as left:
        await handler(job("leave"))
    undecodable = OneWork([ConsumerRecord("jobs", 0, 9, 1, b"k", b"{")])
    with pytest.raises(RecordUndecodable, match="offset 9"):
        await handler(undecodable)

    assert "in worker process" in plain.value.__notes__[0]
    assert strange.value.kind is TwoPartError
    assert left.value.code == 4


@pytest.mark.parametrize("how", ["exit", "kill"])
async def test_a_process_that_dies_fails_its_own_record_and_is_replaced(
    handler: FunctionHandler, sent: Sent, how: str
) -> None:
    before = set(handler.pids())

    results = await asyncio.gather(
        handler(job(how)), *(handler(job("emit")) for _ in range(20)), return_exceptions=True
    )

    assert isinstance(results[0], WorkerProcessDied)
    assert results[0].pid in before
    assert results[1:] == [None] * 20
    assert len(sent.records) == 20
    await handler(job("emit"))
    assert results[0].pid not in handler.pids()


async def test_a_process_killed_while_it_is_idle_fails_no_record(
    handler: FunctionHandler, sent: Sent
) -> None:
    killed = [psutil.Process(pid) for pid in handler.pids()]
    for each in killed:
        os.kill(each.pid, signal.SIGKILL)
    await asyncio.to_thread(psutil.wait_procs, killed, WAIT_S)

    results = await asyncio.gather(*(handler(job("emit")) for _ in range(10)), return_exceptions=True)

    # The end of an idle process may be noticed only by the record that was just given to it.
    assert sum(isinstance(each, WorkerProcessDied) for each in results) <= 2
    await handler(job("emit"))


async def test_a_process_that_hangs_is_killed_when_its_call_is_given_up(
    handler: FunctionHandler, sent: Sent, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    os.mkfifo(file)
    hanging = asyncio.get_running_loop().create_task(handler(job("hang", file)))
    process = psutil.Process(int(await asyncio.to_thread(file.read_text)))

    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging

    await asyncio.to_thread(process.wait, WAIT_S)
    await asyncio.gather(*(handler(job("emit")) for _ in range(4)))
    assert len(sent.records) == 4


async def test_the_environment_of_programs_started_meanwhile_is_the_same(handler: FunctionHandler) -> None:
    """A broker refuses variables whose names begin as those of its settings."""
    assert not [name for name in os.environ if name.startswith("OTTLA_STREAMS")]


async def test_no_process_is_left_behind(sent: Sent) -> None:
    async with FunctionHandler(work, sent, run_on="processes", max_processes=2) as handler:
        processes = [psutil.Process(pid) for pid in handler.pids()]

    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, WAIT_S)
    assert not alive


async def test_batches_go_to_processes_as_one_call(sent: Sent) -> None:
    records = [ConsumerRecord("jobs", 0, at, 1, b"k", b'{"do": "job %d"}' % at) for at in range(3)]

    async with FunctionHandler(work_all, sent, run_on="processes") as handler:
        await handler(OneWork(records))

    assert [each.value for each in sent.records] == ["job 0,job 1,job 2"]


async def test_a_function_that_processes_cannot_import_is_refused(sent: Sent) -> None:
    def inside(record: ConsumerRecord) -> None: ...

    async def asynchronous(record: ConsumerRecord) -> None: ...

    with pytest.raises(InvalidHandler, match=r"is defined inside a function.*module's level"):
        FunctionHandler(inside, sent, run_on="processes")
    with pytest.raises(InvalidHandler, match=r"is async; processes run plain functions"):
        FunctionHandler(asynchronous, sent, run_on="processes")


async def test_processes_end_with_a_parent_that_is_killed() -> None:
    program = (
        "import asyncio\n"
        "from ottla.streams.handlers.function_handler import FunctionHandler\n"
        "from peers.stream_handlers import work\n"
        "async def main():\n"
        "    async with FunctionHandler(work, None, run_on='processes', max_processes=2) as handler:\n"
        "        print(*handler.pids(), flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert parent.stdout is not None
    async with asyncio.timeout(WAIT_S):
        processes = [psutil.Process(int(pid)) for pid in (await parent.stdout.readline()).split()]

    parent.kill()
    await parent.wait()

    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, WAIT_S)
    assert len(processes) == 2
    assert not alive


async def test_the_time_out_of_work_that_waits_for_a_process_starts_when_it_gets_one(
    sent: Sent, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    os.mkfifo(file)
    loop = asyncio.get_running_loop()
    second = job("emit")
    async with FunctionHandler(work, sent, run_on="processes", max_processes=1) as handler:
        hanging = loop.create_task(handler(job("hang", file)))
        await asyncio.to_thread(file.read_text)
        waiting = loop.create_task(handler(second))
        await asyncio.sleep(0)
        assert second.started_ms == NOT_STARTED_MS

        hanging.cancel()
        async with asyncio.timeout(WAIT_S):
            await waiting

    assert 0 < second.started_ms <= loop.time() * 1_000
