"""The compiled modules, which is every .pyx there is; everything else stands in pyproject.toml.

They are compiled against declarations and C headers of ottla-protocol. In a clone those are the sources of
ottla-protocol beside this package; anywhere else the build requires an installed ottla-protocol.
"""

import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
DECLARATIONS = "ottla/protocol/records/_batch.pxd"


def protocol_root():
    """Return the folder that holds `ottla/protocol` with its declarations, or None."""
    roots = [HERE.parent / "protocol" / "src"]
    try:
        found = find_spec("ottla.protocol")
    except ModuleNotFoundError:  # nothing of the namespace is installed
        found = None
    if found is not None and found.origin:
        roots.append(Path(found.origin).parents[2])
    return next((str(root) for root in roots if (root / DECLARATIONS).exists()), None)


def requirement():
    """Return this package's own requirement of ottla-protocol."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(need for need in project["dependencies"] if need.startswith("ottla-protocol"))


def extension(source, root=None):
    return Extension(
        ".".join(source.relative_to("src").with_suffix("").parts),
        [str(source)],
        include_dirs=[str(source.parent)] + ([root] if root else []),
        depends=sorted(str(path) for pattern in ("*.h", "*.px[di]") for path in Path("src").rglob(pattern)),
        extra_compile_args=["/O2"] if sys.platform == "win32" else ["-O3"],
    )


class Compile(build_ext):
    """Runs Cython once there is ottla-protocol to compile against."""

    def finalize_options(self):
        root = protocol_root()
        if root is None:
            raise SystemExit(f"compiling needs {requirement()}, which is not installed")
        extensions = [extension(source, root) for source in SOURCES]
        self.distribution.ext_modules = cythonize(extensions, include_path=[root, "src"], language_level=3)
        super().finalize_options()


SOURCES = sorted(Path("src").rglob("*.pyx"))

setup(
    ext_modules=[extension(source) for source in SOURCES],
    cmdclass={"build_ext": Compile},
    # Build frontends install what is named here before they build (PEP 517); pyproject.toml cannot say "or".
    setup_requires=[] if protocol_root() else [requirement()],
)
