"""Settings of logins by Kerberos, under the names of Java and librdkafka."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from ottla.client.authentication import _step
from ottla.client.config import ClientConfig
from ottla.client.kerberos import Kerberos, check_kerberos
from ottla.client.settings import SettingError, from_properties

pytest.importorskip("gssapi")

COMMON = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}


def test_settings_of_java_and_librdkafka_name_the_same_login(tmp_path: Path) -> None:
    keytab = tmp_path / "anna.keytab"
    keytab.write_bytes(b"")
    module = "com.sun.security.auth.module.Krb5LoginModule"
    jaas = f'{module} required useKeyTab=true keyTab="{keytab}" principal="anna@R" serviceName="kafka";'
    by_java = from_properties(ClientConfig, COMMON | {"sasl.jaas.config": jaas}).security
    by_librdkafka = from_properties(
        ClientConfig,
        COMMON
        | {
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.principal": "anna@R",
            "sasl.kerberos.keytab": str(keytab),
        },
    ).security

    assert by_java == by_librdkafka
    assert (by_java.sasl_kerberos_service_name, by_java.sasl_kerberos_principal) == ("kafka", "anna@R")


def test_a_keytab_that_is_missing_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="sasl_kerberos_keytab: there is no file"):
        check_kerberos("kafka", str(tmp_path / "none"))


class Blocking:
    """A login whose first step waits, as it does for a realm that does not answer."""

    blocks: ClassVar[bool] = True

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.thread = ""

    def first(self) -> bytes:
        self.thread = threading.current_thread().name
        assert self.may_go_on.wait(60)
        return b"ticket"

    def answer(self, challenge: bytes) -> bytes | None:
        return None


async def test_steps_that_wait_for_the_realm_leave_the_loops_own_threads_to_others() -> None:
    loop, waiting = asyncio.get_running_loop(), [Blocking() for _ in range(40)]
    with ThreadPoolExecutor(1) as only:
        loop.set_default_executor(only)
        steps = [asyncio.ensure_future(_step(login, login.first)) for login in waiting]
        await asyncio.sleep(0)  # they begin

        try:
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(lambda: "other work") == "other work"
        finally:
            for login in waiting:
                login.may_go_on.set()
        assert await asyncio.gather(*steps) == [b"ticket"] * 40
    assert {login.thread[:7] for login in waiting} == {"logins_"}
    assert Kerberos("kafka", "localhost", None, None).blocks
