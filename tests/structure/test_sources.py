"""The readers of the structure tests find what they are meant to find."""

from __future__ import annotations

import base64
from pathlib import Path

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
settings = {"ssl.key.password": "battery staple", "client.id": "not a secret"}
connect(sasl_password="a stapler too", user="josef", jaas='required user_anna="in a jaas line";')
"""
    found = set(secrets_in(source))
    log = tmp_path / "tests.log"
    log.write_text(f"DEBUG sent token {base64.b64encode(b'battery staple').decode()}\nDEBUG nothing\n")

    assert found == {"correct horse", "battery staple", "a stapler too", "in a jaas line"}
    assert [line.partition(": ")[2] for line in leaks(found, [log])] == [
        "'battery staple' behind 'DEBUG sent token '"
    ]
    assert "correct horse" in known_secrets(tmp_path)
