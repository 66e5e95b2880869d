"""How the packages of this tree compile their modules: every .pyx below `src`.

One file for all of them. In a clone it is `packages/native_modules.py`, beside the packages; an sdist has a
copy beside its setup.py, so that it is complete.

Modules are compiled against declarations and C headers of ottla-protocol: in a clone the sources beside the
package, elsewhere an installed ottla-protocol. In a clone each is generated and compiled once, side by side
with others: its C is kept in `build/native` under a digest of its sources, for all versions of Python, and
the compiled module under a digest of that, of the flags and of the Python that it is for. Environments have
copies.

`python native_modules.py PACKAGE...` compiles the modules of several packages side by side.
"""

import hashlib
import os
import shutil
import sys
import sysconfig
import time
import tomllib
from importlib.util import find_spec
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import Cython
from Cython.Build import cythonize
from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

SHARED = Path(__file__).resolve()
DECLARATIONS = "ottla/protocol/records/_batch.pxd"
KEPT_DAYS = 14
"""Days after its last use at which a file is deleted from `build/native`."""
CAN_FORK = "fork" in get_all_start_methods() and sys.platform != "darwin"
"""A started process would run setup.py again, and importing Cython takes as long as it takes to generate."""


def setup_package(package):
    """Call `setup` for the package in a folder."""
    os.chdir(package)
    needs = [] if protocol_root(package) else [requirement(package)]
    setup(
        ext_modules=[extension(source) for source in sources()],
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


def sources():
    """Return the .pyx files of the package in the current folder."""
    return sorted(Path("src").rglob("*.pyx"))


def extension(source):
    """Return the extension of a .pyx. Symbols for debuggers, a third of the work, only with CFLAGS set."""
    if sys.platform == "win32":
        optimize = ["/O2"]
    else:  # warnings are about generated code
        optimize = ["-O3", "-w", *([] if "CFLAGS" in os.environ else ["-g0"])]
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
        self.root = None

    def build_extensions(self):
        self.root = protocol_root(Path.cwd())
        if self.root is None:
            raise SystemExit(f"compiling needs {requirement(Path.cwd())}, which is not installed")
        for ext in self.extensions:
            ext.include_dirs.append(str(self.root))
            ext.depends = sorted({*ext.depends, *declarations(self.root)})
        self.kept = {ext.name: path for ext in self.extensions if (path := kept_module(ext))}
        if self.kept and self.parallel > 1 and CAN_FORK:
            missing = [ext.sources[0] for ext in self.extensions if not self.is_kept(ext)]
            compile_side_by_side([(Path.cwd(), source) for source in missing], self.parallel)
        for ext in self.extensions:
            if not self.is_kept(ext):
                ext.sources = [str(self.generate(ext))]
        super().build_extensions()

    def generate(self, ext):
        """Return the C of an extension, which is generated if the clone has none of these sources."""
        path = kept_source(ext)
        if path is not None and path.exists():
            os.utime(path)
            return path
        (generated,) = cythonize(
            [ext],
            include_path=[str(self.root), "src"],
            language_level=3,
            build_dir=self.build_temp,
            force=True,
            quiet=True,
        )
        made = Path(generated.sources[0])
        return made if path is None else keep(made, path)

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


def compile_side_by_side(modules, processes):
    """Compile modules, each a package's folder and a source in it, the largest first."""
    if not modules:
        return
    ordered = sorted(modules, key=lambda module: -size(Path(*module)))
    # A process for each: Cython remembers relative paths, which mean others in the next package.
    with get_context("fork").Pool(min(processes, len(modules)), maxtasksperchild=1) as pool:
        for count, name in enumerate(pool.imap_unordered(compile_module, ordered), 1):
            print(f"compiled {count} of {len(modules)}: {name}", flush=True)


def size(source):
    """Return the bytes of a source with those that it may include."""
    return source.stat().st_size + sum(path.stat().st_size for path in source.parent.glob("*.pxi"))


def compile_module(module):
    """Compile a module of a package into `build/native`, if it is not there; return its name."""
    package, source = module
    os.chdir(package)
    ext = extension(Path(source))
    command = Compile(Distribution({"name": package.name, "ext_modules": [ext]}))
    command.parallel = 1
    with TemporaryDirectory() as folder:
        command.build_lib = command.build_temp = folder
        command.ensure_finalized()
        command.run()
    return ext.name


def kept_source(ext):
    """Return where a clone keeps the C of an extension; None outside of a clone."""
    digest = digest_of(ext, ())
    return None if digest is None else native_folder() / f"{ext.name}-{digest}.c"


def kept_module(ext):
    """Return where a clone keeps an extension compiled from these inputs; None outside of a clone."""
    environment = [f"{name}={os.environ.get(name)}" for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS")]
    made_by = (*ext.extra_compile_args, *environment, sys.version, sysconfig.get_platform())
    digest = digest_of(ext, made_by)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return None if digest is None else native_folder() / f"{ext.name}-{digest}{suffix}"


def native_folder():
    """Return the folder of a clone for C and compiled modules; None outside of a clone."""
    clone = SHARED.parent.parent
    is_clone = SHARED.parent.name == "packages" and (clone / "pyproject.toml").exists()
    return clone / "build" / "native" if is_clone else None


def digest_of(ext, made_by):
    """Return the digest of an extension's sources and of what else makes it; None outside of a clone."""
    if native_folder() is None:
        return None
    digest = hashlib.sha256("\0".join((ext.name, Cython.__version__, *made_by)).encode())
    for path in (SHARED, *ext.sources, *ext.depends):
        name = Path(path).name.encode()
        content = Path(path).read_bytes()
        digest.update(b"%d %b %d " % (len(name), name, len(content)) + content)
    return digest.hexdigest()[:32]


def keep(made, path):
    """Keep a file under a path, return the path, and delete files that were not used for `KEPT_DAYS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    shutil.copyfile(made, unfinished)
    unfinished.replace(path)  # two sessions may compile at once
    for other in path.parent.iterdir():
        if time.time() - other.stat().st_mtime > KEPT_DAYS * 86_400:
            other.unlink(missing_ok=True)
    return path


def main(packages):
    """Compile the modules of packages side by side; for a clone."""
    modules = []
    for package in [Path(name).resolve() for name in packages]:
        os.chdir(package)
        root = protocol_root(package)
        for source in sources():
            ext = extension(source)
            ext.depends = sorted({*ext.depends, *declarations(root)})
            if not kept_module(ext).exists():
                modules.append((package, str(source)))
    if CAN_FORK:  # elsewhere each package compiles its own modules when its wheel is built
        compile_side_by_side(modules, os.cpu_count() or 1)


if __name__ == "__main__":
    main(sys.argv[1:])
