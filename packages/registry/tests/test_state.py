"""The state of a registry is that of its compacted topic: nothing is lost that was not removed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.registry.client import Reference
from ottla.registry.server.errors import Refused
from ottla.registry.server.parsing import SchemaParser
from ottla.registry.server.questions import GivenSchema
from ottla.registry.server.service import RegistryService
from ottla.registry.server.serving import MemoryStore
from ottla.registry.server.state import Record, RegistryState, config_record, deletion_record, mode_record


def compacted(records: list[Record]) -> list[Record]:
    """Return the last record of each key, at its place, without tombstones."""
    last = {key: index for index, (key, _) in enumerate(records)}
    return [
        record for index, record in enumerate(records) if last[record[0]] == index and record[1] is not None
    ]


def facts(state: RegistryState) -> dict[str, Any]:
    return {
        "live": list(state.names()),
        "subjects": {name: state.versions(name, deleted=True) for name in state.names(deleted=True)},
        "last ids": {name: context.last_id for name, context in state.contexts.items()},
        "ids": {name: context.ids for name, context in state.contexts.items()},
        "configs": state.configs, "modes": state.modes,
        "referrers": {target: places for target, places in state.referrers.items() if places},
        "letters": (state.letters, state.versions_count),
    }  # fmt: skip


def applied(records: list[Record]) -> RegistryState:
    state = RegistryState()
    for key, value in records:
        state.apply(key, value)
    return state


def step(service: RegistryService, chance: random.Random) -> Awaitable[object]:
    """Return a change that is drawn; many are refused."""
    subject = chance.choice(["a", "b", ":.lab:a"])
    schema = GivenSchema("AVRO", json.dumps({"type": "fixed", "name": "F", "size": chance.randrange(40)}))
    permanent = chance.random() < 0.5
    versions: list[int | str] = ["latest", 1, 2, 3, 4, 5]
    version = chance.choice(versions)
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: service.register(subject, schema, normalize=False),
        lambda: service.delete_subject(subject, permanent=permanent),
        lambda: service.delete_version(subject, version, permanent=permanent),
        lambda: service.set_level(subject, {"compatibility": chance.choice(["FULL", "NONE"])}),
        lambda: service.delete_level(subject), lambda: service.delete_mode(subject),
        lambda: service.set_mode(subject, "READWRITE", force=False),
    ]  # fmt: skip
    return chance.choices(changes, weights=[9, 3, 6, 1, 1, 1, 1])[0]()


@pytest.mark.parametrize("seed", range(12))
async def test_a_compacted_topic_has_the_state_of_the_whole(seed: int) -> None:
    records: list[Record] = []
    state = RegistryState()

    def apply(key: bytes, value: bytes | None) -> None:
        records.append((key, value))
        state.apply(key, value)

    async with SchemaParser() as parser:
        service = RegistryService(state, MemoryStore("memory", apply), parser)
        await service.set_level("", {"compatibility": "NONE"})
        chance = random.Random(seed)
        for _ in range(80):
            try:
                await step(service, chance)
            except Refused:
                continue
            assert facts(applied(compacted(records))) == facts(state)

    assert len(records) > 20
    assert facts(applied(records)) == facts(state)
    for name in state.names(deleted=True):
        assert (name in list(state.names())) == bool(state.versions(name))


@pytest.mark.parametrize(
    "record",
    [
        (b"[]", b"{}"), (b"x", None), (b'{"keytype":"SCHEMA","subject":"a","version":1}', b'{"subject":"b"}'),
        (b'{"keytype":"SCHEMA","subject":"a","version":1}',
         b'{"subject":"b","version":1,"id":1,"schema":"x"}'),
        (b'{"keytype":"DELETE_SUBJECT","subject":"a"}', b"{}"), (b'{"keytype":"CONFIG"}', b"7"),
        (b'{"keytype":"OTTLA_LAST_ID"}', b"{}"),
    ],
)  # fmt: skip
def test_a_record_that_makes_no_sense_changes_nothing(record: Record) -> None:
    state = applied([config_record("", {"compatibilityLevel": "NONE"}), mode_record("a", "READONLY")])
    before = facts(state)

    with pytest.raises(ValueError):  # noqa: PT011 - of msgspec, and of the state
        state.apply(*record)

    assert facts(state) == before


def test_a_deletion_holds_for_versions_up_to_its_own() -> None:
    state = applied([deletion_record("nowhere", 3)])

    assert facts(state)["subjects"] == {}


async def test_requests_for_one_schema_at_the_same_time_count_its_letters_once() -> None:
    text = json.dumps({"type": "record", "name": "R", "doc": "x" * 1_000_000, "fields": []})

    async with SchemaParser() as parser:
        await asyncio.gather(*(parser.parse("AVRO", text, ()) for _ in range(12)))
        small = await parser.parse("AVRO", '"string"', ())

        assert await parser.parse("AVRO", '"string"', ()) is small


async def test_an_import_of_the_latest_version_is_one_of_its_number() -> None:
    state = RegistryState()
    item = [json.dumps({"type": "fixed", "name": "Item", "size": size}) for size in (4, 5)]
    basket = GivenSchema(
        "AVRO", json.dumps({"type": "array", "items": "Item"}), (Reference("Item", "item", -1),)
    )

    async with SchemaParser() as parser:
        service = RegistryService(state, MemoryStore("memory", state.apply), parser)
        await service.set_level("", {"compatibility": "NONE"})
        await service.register("item", GivenSchema("AVRO", item[0]), normalize=False)
        first = await service.register("basket", basket, normalize=False)
        assert first.references == (Reference("Item", "item", 1),)
        assert await service.lookup("basket", basket, normalize=False, deleted=False) == first
        with pytest.raises(Refused, match="is imported by version 1 of 'basket'"):
            await service.delete_version("item", 1, permanent=False)

        await service.register("item", GivenSchema("AVRO", item[1]), normalize=False)
        second = await service.register("basket", basket, normalize=False)
        assert (second.version, second.references) == (2, (Reference("Item", "item", 2),))
