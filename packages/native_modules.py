"""How the packages of this tree compile their modules: every .pyx below `src`.

One file for all of them. In a clone it is `packages/native_modules.py`, beside the packages; an sdist has a
copy beside its setup.py, so that it is complete.

Modules are compiled against declarations and C headers of ottla-protocol: in a clone the sources beside the
package, elsewhere an installed ottla-protocol. They are compiled side by side, and in a clone once: a
compiled module is kept in `build/native` under a digest of its inputs, and copied for each environment.
"""

import hashlib
import os
import shutil
import sys
import sysconfig
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path

import Cython
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

SHARED = Path(__file__).resolve()
DECLARATIONS = "ottla/protocol/records/_batch.pxd"
KEPT_DAYS = 14
"""Days after its last use at which a compiled module is deleted from `build/native`."""


def setup_package(package):
    """Call `setup` for the package in a folder."""
    os.chdir(package)
    needs = [] if protocol_root(package) else [requirement(package)]
    setup(
        ext_modules=[extension(source) for source in sorted(Path("src").rglob("*.pyx"))],
        cmdclass={"build_ext": Compile, "sdist": CompleteSdist},
        # Build frontends install this before they build (PEP 517); pyproject.toml cannot say "or".
        setup_requires=needs,
    )


def protocol_root(package):
    """Return the folder that holds `ottla/protocol` with its declarations, or None."""
    roots = [package / "src", package.parent / "protocol" / "src"]
    try:
        found = find_spec("ottla.protocol")
    except ModuleNotFoundError:  # nothing of the namespace is installed
        found = None
    if found is not None and found.origin:
        roots.append(Path(found.origin).parents[2])
    return next((root for root in roots if (root / DECLARATIONS).exists()), None)


def requirement(package):
    """Return a package's own requirement of ottla-protocol."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(need for need in project["dependencies"] if need.startswith("ottla-protocol"))


def extension(source):
    """Return the extension of a .pyx. Symbols for debuggers, a third of the work, only with CFLAGS set."""
    optimize = ["/O2"] if sys.platform == "win32" else ["-O3", *([] if "CFLAGS" in os.environ else ["-g0"])]
    return Extension(
        ".".join(source.relative_to("src").with_suffix("").parts),
        [str(source)],
        include_dirs=[str(source.parent), "src"],
        depends=declarations(Path("src")),
        extra_compile_args=optimize,
    )


def declarations(root):
    """Return the C headers and Cython declarations below a folder."""
    return sorted(str(path) for pattern in ("*.h", "*.px[di]") for path in root.rglob(pattern))


class Compile(build_ext):
    """Compiles the extensions side by side, and copies those that this clone has compiled before."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = int(self.parallel or os.cpu_count() or 1)
        self.kept = {}

    def build_extensions(self):
        root = protocol_root(Path.cwd())
        if root is None:
            raise SystemExit(f"compiling needs {requirement(Path.cwd())}, which is not installed")
        for ext in self.extensions:
            ext.include_dirs.append(str(root))
            ext.depends = sorted({*ext.depends, *declarations(root)})
        self.kept = {ext.name: path for ext in self.extensions if (path := kept_path(ext, root))}
        self.generate([ext for ext in self.extensions if not self.is_kept(ext)], root)
        super().build_extensions()

    def generate(self, extensions, root):
        """Replace the .pyx of extensions by generated C."""
        generated = cythonize(
            extensions,
            include_path=[str(root), "src"],
            language_level=3,
            build_dir=self.build_temp,
            nthreads=min(self.parallel, len(extensions)),
            force=True,
        )
        for ext, with_c in zip(extensions, generated, strict=True):
            ext.sources = with_c.sources

    def is_kept(self, ext):
        return ext.name in self.kept and self.kept[ext.name].exists()

    def build_extension(self, ext):
        target = Path(self.get_ext_fullpath(ext.name))
        if self.is_kept(ext):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.kept[ext.name], target)
            os.utime(self.kept[ext.name])
            return
        super().build_extension(ext)
        if ext.name in self.kept:
            keep(target, self.kept[ext.name])


class CompleteSdist(sdist):
    """Adds this file to an sdist."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        shutil.copyfile(SHARED, Path(base_dir, SHARED.name))


# --- compiled modules of a clone


def kept_path(ext, root):
    """Return where a clone keeps an extension compiled from these inputs; None outside of a clone."""
    clone = SHARED.parent.parent
    if SHARED.parent.name != "packages" or not (clone / ".git").exists():
        return None
    made_by = (ext.name, *ext.extra_compile_args, Cython.__version__, sys.version, sysconfig.get_platform())
    environment = [f"{name}={os.environ.get(name)}" for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS")]
    digest = hashlib.sha256("\0".join((*made_by, *environment)).encode())
    for path in (SHARED, *ext.sources, *ext.depends):
        name = Path(path).name.encode()
        content = Path(path).read_bytes()
        digest.update(b"%d %b %d " % (len(name), name, len(content)) + content)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return clone / "build" / "native" / f"{ext.name}-{digest.hexdigest()[:32]}{suffix}"


def keep(compiled, path):
    """Keep a compiled module, and delete those that were not used for `KEPT_DAYS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    shutil.copyfile(compiled, unfinished)
    unfinished.replace(path)  # two sessions may compile at once
    for other in path.parent.iterdir():
        if time.time() - other.stat().st_mtime > KEPT_DAYS * 86_400:
            other.unlink(missing_ok=True)
