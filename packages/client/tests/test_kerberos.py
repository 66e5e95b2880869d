"""Settings of logins by Kerberos, under the names of Java and librdkafka."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_steps_run_on_a_thread_for_they_may_ask_a_server() -> None:
    assert Kerberos("kafka", "localhost", None, None).blocks
