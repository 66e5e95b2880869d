"""Compiles the modules of this package; `native_modules.py` says how, for all packages of the tree alike."""

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
# An sdist has it beside this file, a clone beside the packages.
sys.path.insert(0, str(PACKAGE if (PACKAGE / "native_modules.py").exists() else PACKAGE.parent))

from native_modules import setup_package  # noqa: E402

setup_package(PACKAGE)
