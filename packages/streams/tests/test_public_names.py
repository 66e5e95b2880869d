from __future__ import annotations

import subprocess
import sys

import ottla.streams


def test_every_public_name_is_there_and_no_other() -> None:
    for name in ottla.streams.__all__:
        assert getattr(ottla.streams, name) is not None

    assert set(ottla.streams.__all__) == set(ottla.streams._LATE)
    assert set(ottla.streams.__all__) <= set(dir(ottla.streams))


def test_the_import_alone_loads_no_client() -> None:
    code = "import sys, ottla.streams; print(*[each for each in sys.modules if each.startswith('ottla.')])"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == ["ottla.streams"]
