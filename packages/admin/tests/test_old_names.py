from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_ADMIN = """
import sys

class Absent:
    def find_spec(name, path, target=None):
        if name == "ottla.admin":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter that has imported nothing yet."""
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from ottla.client.admin import Admin", "from ottla.admin import Admin"),
        ("import ottla.client.admin.offsets", "import ottla.admin.offsets"),
        ("from ottla.client.admin import groups", "from ottla.admin import groups"),
        ("from ottla.client.admin.configs import TOPIC", "from ottla.admin.configs import TOPIC"),
        ("from ottla.client.commands import with_admin", "from ottla.admin.commands import with_admin"),
        ("from ottla.client.commands import txn", "from ottla.admin.commands import txn"),
        ("import ottla.client.commands.topic", "import ottla.admin.commands.topic"),
    ],
)
def test_an_old_name_imports_the_same_object_and_names_the_new_one(old: str, new: str) -> None:
    done = run(f"{old} as found\n{new} as wanted\nprint(found is wanted)")

    assert done.stdout == "True\n", done.stderr
    module = new.split()[1]
    # The warning is about the line that imports the old name.
    assert done.stderr.startswith("<string>:1: DeprecationWarning: ottla.client.")
    assert f" is now {module}" in done.stderr


def test_all_public_names_of_the_admin_client_have_their_old_names() -> None:
    done = run(
        "import ottla.admin, ottla.client.admin\n"
        "names = [name for name in ottla.admin.__all__ "
        "if getattr(ottla.client.admin, name) is not getattr(ottla.admin, name)]\n"
        "print(names, ottla.client.admin.__all__ == ottla.admin.__all__)"
    )

    assert done.stdout == "[] True\n"


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    done = run("import ottla.client.admin\nottla.client.admin.Administrator")

    assert "AttributeError" in done.stderr
    assert "Administrator" in done.stderr


@pytest.mark.parametrize(
    "old",
    [
        "from ottla.client.admin import Admin",
        "import ottla.client.admin.offsets",
        "import ottla.client.commands.topic",
        "from ottla.client.commands import with_admin",
    ],
)
def test_an_old_name_without_ottla_admin_says_what_to_install(old: str) -> None:
    done = run(f"{WITHOUT_ADMIN}{old}")

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ottla.client.")
    assert last.endswith(" is in another package now: python -m pip install ottla-admin")
