"""The readers of the structure tests find what they are meant to find."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from peers.debug_secrets import known_secrets, leaks, secrets_in
from structure.sources import Source, cycles


def test_the_length_of_a_native_function_ends_where_the_next_definition_begins(tmp_path: Path) -> None:
    file = tmp_path / "one.pyx"
    file.write_text(
        '# cython: language_level=3\n"""What it is."""\n\n'
        "cdef class Box:\n    cdef int size\n\n    cdef int grow(self, int by) except -1:\n"
        "        self.size += by\n\n        return 0\n\n    def show(self):\n        return self.size\n\n\n"
        "cdef inline int two(\n    int a,\n    int b,\n) nogil:\n    return a + b\n"
    )

    source = Source(file)

    assert source.docstring == "What it is."
    assert [(function.name, function.first_line, function.lines) for function in source.functions()] == [
        ("grow", 7, 4),
        ("show", 12, 2),
        ("two", 16, 5),
    ]


def test_modules_that_reach_each_other_are_one_cycle() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}

    assert cycles(graph) == [["a", "b", "c"]]


def test_the_secrets_of_tests_are_found_in_their_sources_and_in_logs(tmp_path: Path) -> None:
    source = """
PASSWORD = "correct horse"
SECRET: Final = "of a constant"
PASSWORDS: Final = {ADMIN: "of an admin", "anna": f"{nothing}"}
settings = {"ssl.key.password": "battery staple", "client.id": "not a secret"}
outcomes = {"a wrong password": "AuthenticationFailed"}
connect(sasl_password="a stapler too", user="josef", jaas='required user_anna="in a jaas line";')
"""
    found = set(secrets_in(source))
    log = tmp_path / "tests.log"
    log.write_text(f"DEBUG sent token {base64.b64encode(b'battery staple').decode()}\nDEBUG nothing\n")

    named = {"correct horse", "battery staple", "a stapler too", "in a jaas line"}
    assert found == named | {"of a constant", "of an admin"}
    assert [line.partition(": ")[2] for line in leaks(found, [log])] == [
        "'battery staple' behind 'DEBUG sent token '"
    ]
    assert "correct horse" in known_secrets(tmp_path)


@pytest.mark.parametrize("before", [b"", b"\0", b"\0anna\0", b"anna:"])
def test_a_secret_is_found_in_base64_behind_any_other_bytes(tmp_path: Path, before: bytes) -> None:
    log = tmp_path / "tests.log"
    encoded = base64.b64encode(before + b"correct horse" + before).decode()
    log.write_text("x" * (1 << 24) + f"\nDEBUG auth_bytes={encoded}\n" + "x" * 100)
    across = tmp_path / "across.log"
    across.write_text("x" * ((1 << 24) - 5) + "correct horse\n")

    found = list(leaks({"correct horse", "battery staple"}, [log, across]))

    assert [line.partition(" behind ")[0] for line in found] == [
        f"{log}: 'correct horse'",
        f"{across}: 'correct horse'",
    ]
