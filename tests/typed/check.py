"""Run mypy and pyright over the typed examples: `right.py` must pass, `wrong.py` fail where it says so.

python tests/typed/check.py [mypy] [pyright]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MARK = "# expect-error"

Errors = dict[tuple[str, int], str]


def mypy() -> Errors:
    """Return the errors of mypy in its strict mode, by file and line."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-pretty",
        str(HERE / "right.py"),
        str(HERE / "wrong.py"),
    ]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = re.findall(r"^(.*?):(\d+): error: (.*)$", output, re.MULTILINE)
    return {(Path(path).name, int(line)): message for path, line, message in found} or _unread(
        output, "Success"
    )


def pyright() -> Errors:
    """Return the errors of pyright, by file and line.

    It finds the packages by their folders, as mypy does by its settings: they need not be installed.
    """
    sources = os.pathsep.join(str(folder) for folder in sorted(ROOT.glob("packages/*/src")))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(HERE)]
    output = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": sources},
    ).stdout
    report = json.loads(output[output.index("{") :])
    return {
        (Path(error["file"]).name, error["range"]["start"]["line"] + 1): error["message"]
        for error in report["generalDiagnostics"]
        if error["severity"] == "error"
    }


def _unread(output: str, word: str) -> Errors:
    if word not in output:
        raise SystemExit(f"the checker did not run: {output}")
    return {}


CHECKERS: Mapping[str, Callable[[], Errors]] = {"mypy": mypy, "pyright": pyright}


def expected() -> set[tuple[str, int]]:
    """Return the lines that must have an error."""
    lines = (HERE / "wrong.py").read_text().splitlines()
    return {("wrong.py", number) for number, line in enumerate(lines, 1) if line.endswith(MARK)}


def main(names: list[str]) -> int:
    """Print where checkers and marks differ; return 1 if they do."""
    differ = 0
    for name in names or list(CHECKERS):
        found = CHECKERS[name]()
        for file, line in sorted(expected() - found.keys()):
            print(f"{name} accepts {file}:{line}, which is wrong")
        for file, line in sorted(found.keys() - expected()):
            print(f"{name} rejects {file}:{line}: {found[file, line]}")
        differ += len(expected() ^ found.keys())
        print(f"{name}: {len(expected())} wrong lines, {len(found)} errors")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
