"""State at least once: chained aggregates after a crash at any moment, and what a zombie writes late."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.streams.language.topology import Topology
from peers.stream_member import Log, Member, record


def added(total: int, n: int) -> int:
    return total + n


def topology() -> Topology:
    """Sum up, sum up the sums, and those once more; beside it a store that nothing follows."""
    program = Topology()
    numbers = program.stream("orders", key=str, value=int)
    sums = numbers.aggregate(int, added, name="first")
    sums.aggregate(int, added, name="second").aggregate(int, added, name="third").to("out")
    numbers.merge(sums).aggregate(int, added, name="both").to("out")
    return program


def changelogs(log: Log) -> dict[str, dict[bytes | None, bytes | None]]:
    """Return the newest row of each key."""
    return {name: dict(log.rows(f"{name}-changelog")) for name in ("first", "second", "third", "both")}


def survivors(log: Log, end: int, kept: dict[str, int]) -> list[ProducerRecord]:
    """Return what is in the topics after a crash at an output.

    All that was acknowledged before is there. Of what came after it each topic has a part: each is written in
    order, and they do not wait for each other.
    """
    acknowledged = max((each for each in log.acknowledged_at if each <= end), default=0)
    found, left = log.outputs[:acknowledged], dict(kept)
    for output in log.outputs[acknowledged:end]:
        if left.setdefault(output.topic, 0) > 0:
            left[output.topic] -= 1
            found.append(output)
    return found


async def crashed_and_restored(
    records: Iterable[ConsumerRecord], crash: float, kept: dict[str, int]
) -> tuple[Log, int]:
    """Handle records up to a crash; return what survived, and the number of the first unfinished record."""
    log, ends = Log(), list[int]()
    member = Member(topology(), "orders", log)
    for each in records:
        await member.handle(each)
        ends.append(len(log.outputs))
    end = int(crash * len(log.outputs))
    found = survivors(log, end, kept)
    durable = [id(each) for each in found]
    done = next(
        (at for at, end in enumerate(ends) if any(id(o) not in durable for o in log.outputs[:end])), 0
    )
    return Log(found), done


KEPT = st.fixed_dictionaries(
    {f"{name}-changelog": st.integers(0, 6) for name in ("first", "second", "third", "both")}
)


@given(
    values=st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(1, 9)), min_size=1, max_size=6),
    crash=st.floats(0, 1),
    kept=KEPT,
)
async def test_a_crash_leaves_chained_aggregates_exact(
    values: list[tuple[bytes, int]], crash: float, kept: dict[str, int]
) -> None:
    records = [record(at, key, b"%d" % value) for at, (key, value) in enumerate(values)]
    undisturbed = Log()
    await Member(topology(), "orders", undisturbed).handle_all(records)

    log, done = await crashed_and_restored(records, crash, kept)
    next_owner = Member(topology(), "orders", log)
    await next_owner.restore()
    await next_owner.handle_all(records[done:])

    assert changelogs(log) == changelogs(undisturbed)


# --- a member that writes after its partition went to another


async def taken_over() -> Log:
    """Return a log in which the changelog record of a zombie comes after those of the next owner."""
    program = Topology()
    program.stream("orders", key=str, value=int).aggregate(int, added, name="sums").to("out")
    records = [record(at, b"k", b"1") for at in range(4)]
    zombie, log = Log(), Log()
    await Member(program, "orders", zombie).handle_all(records[:2])
    of_first, of_second = (
        each for each in zombie.outputs if (each.topic, each.key) == ("sums-changelog", b"k")
    )
    log.outputs.append(of_first)
    heir = Member(program, "orders", log)
    await heir.restore()
    await heir.handle_all(records[1:])
    log.outputs.append(of_second)
    return log


async def restored_sum(log: Log) -> bytes | None:
    program = Topology()
    program.stream("orders", key=str, value=int).aggregate(int, added, name="sums").to("out")
    member = Member(program, "orders", log)
    await member.restore()
    entry = await member.stores["sums"].store.get(b"k")
    return None if entry is None else entry.value


async def test_what_a_zombie_writes_late_is_left_out_by_its_stamp() -> None:
    assert await restored_sum(await taken_over()) == b"4"


async def test_at_least_once_what_a_zombie_wrote_last_is_what_compaction_keeps() -> None:
    """The limit that the docs state; a transaction of a zombie is aborted, as tests/sdk shows."""
    log = await taken_over()
    newest = {(each.topic, each.key): each for each in log.outputs}

    assert await restored_sum(Log(list(newest.values()))) == b"2"
