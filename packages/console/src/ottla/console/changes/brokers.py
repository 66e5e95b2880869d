"""Changes of brokers: their dynamic settings, of one or of all. Secret ones are left to the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ottla.admin import BROKER, Admin, ConfigEntry
from ottla.console.changes.plans import Field, Form, Plan, needs
from ottla.console.logins.access import Role
from ottla.console.web.fields import Unclear

ALL: Final = "all brokers"
_MOST_VALUE: Final = 10_000


@needs(Role.ADMINISTRATOR)
async def set_broker_setting(admin: Admin, form: Form) -> Plan:
    """Plan a change of one setting of a broker, or of all; an empty value takes away that which was set."""
    which, key, value = form.get("broker", ALL), form.get("key", "").strip(), form.get("value", "").strip()
    brokers = sorted(broker.id for broker in (await admin.brokers.describe()).brokers)
    fields = (
        Field("broker", "Of", which, "choice", (ALL, *map(str, brokers))),
        Field("key", "Key", key), Field("value", "Value, empty to take away what was set", value),
    )  # fmt: skip
    title = "Change a setting of brokers"
    if not key:
        return Plan(title, "Change", fields, unclear="name a key")
    if which != ALL and which not in map(str, brokers):
        raise Unclear(f"there is no broker {which}")
    if len(value) > _MOST_VALUE:
        raise Unclear(f"a value has at most {_MOST_VALUE} letters")
    chosen = brokers if which == ALL else [int(which)]
    described = await asyncio.gather(*(admin.configs.describe(BROKER, str(broker)) for broker in chosen))
    entries = {
        broker: entry
        for broker, found in zip(chosen, described, strict=True)
        for entry in found
        if entry.name == key
    }
    if unclear := _why_not(key, entries):
        return Plan(title, "Change", fields, unclear=unclear)
    name = "" if which == ALL else which

    async def perform(admin: Admin) -> str:
        await admin.configs.alter(BROKER, name, {key: value or None})
        return f"{key} of {_named(which)} is {value or 'not set here any more'}."

    own = "broker" if which != ALL else ALL
    rows = tuple(
        (str(broker), entry.value or "", entry.source, _then(entry, value, own))
        for broker, entry in entries.items()
    )
    summary = (
        f"{key} of {_named(which)} changes at once, without a restart, and is kept. A setting of one broker "
        "goes before that of all brokers, and this before server.properties."
    )
    return Plan(
        title, "Change", fields, summary, ("Broker", "Now", "From", "Then"), rows, perform=perform,
        back="/settings",
    )  # fmt: skip


def _named(which: str) -> str:
    return which if which == ALL else f"broker {which}"


def _why_not(key: str, entries: Mapping[int, ConfigEntry]) -> str:
    """Return why a key cannot be changed here; an empty text where it can."""
    if not entries:
        return f"{key!r} is no key of a broker"
    if any(entry.sensitive for entry in entries.values()):
        return f"{key} is secret: set it with `ottla configs`, so that its value stands on no page"
    if any(entry.read_only for entry in entries.values()):
        return f"{key} cannot be changed while brokers run: it stands in server.properties"
    return ""


def _then(entry: ConfigEntry, value: str, own: str) -> str:
    """Return the value of a broker after the change, so far as that is known."""
    if own == ALL and entry.source == "broker":
        return f"{entry.value or ''}, as it has its own"
    if value:
        return value
    return "what is set elsewhere, or the default" if entry.source == own else entry.value or ""
