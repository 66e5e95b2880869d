"""Wheels of the packages of this clone, each built once: `python packages/clone_wheels.py broker tools`.

`pip install .` and sessions of nox install them, instead of building each package in an environment of its
own. A wheel is kept in `build/wheels` under a digest of its sources. The digest is also the local part of its
version (`0.1.0+clone.g1a2b3c4d`), so that pip sees that another state of the clone is another version.

Their Python needs hatchling, setuptools and Cython. This file prints the paths of the wheels.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGES = Path(__file__).resolve().parent
BUILT = PACKAGES.parent / "build" / "wheels"
NATIVE = "native_modules.py"
KEPT_DAYS = 14
"""Days after its last use at which a wheel is deleted."""
GENERATED = {".so", ".pyd", ".c", ".pyc"}
HATCHLING = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"


def wheels(names: Sequence[str]) -> dict[str, Path]:
    """Return the wheels of packages, by the folders' names; those that are missing are built side by side."""
    digests = {name: digest_of(PACKAGES / name) for name in names}
    missing = [name for name in names if kept_wheel(name, digests[name]) is None]
    compile_modules(name for name in missing if is_compiled(PACKAGES / name))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        built = [pool.submit(build, name, digests[name]) for name in missing]
        for count, done in enumerate(built, 1):
            print(f"wheel {count} of {len(built)}: {done.result().name}", file=sys.stderr, flush=True)
    found = {name: kept_wheel(name, digests[name]) for name in names}
    return {name: path for name, path in found.items() if path is not None}


def common_set(package: str) -> set[str]:
    """Name a package and those of this tree that it needs, directly or not."""
    known: set[str] = set()
    waiting = [package]
    while waiting:
        name = waiting.pop()
        if name not in known:
            known.add(name)
            waiting += needs_of(name)
    return known


def needs_of(package: str) -> list[str]:
    """Name the packages of this tree that a package needs itself."""
    text = (PACKAGES / folder_of(package) / "pyproject.toml").read_text(encoding="utf-8")
    needs = tomllib.loads(text)["project"]["dependencies"]
    return [found[0] for need in needs if (found := re.match(r"ottla-\w+", need))]


def folder_of(package: str) -> str:
    """Return the name of a package's folder."""
    return package.removeprefix("ottla-")


def compile_modules(names: Iterable[str]) -> None:
    """Compile the modules of all packages side by side; building their wheels then copies them."""
    if compiled := [*names]:
        subprocess.run([sys.executable, NATIVE, *compiled], cwd=PACKAGES, check=True, stdout=sys.stderr)


def is_compiled(package: Path) -> bool:
    """Return whether a package has modules to compile."""
    return (package / "setup.py").exists()


def sources(package: Path) -> Iterator[Path]:
    """Yield the files that a wheel of a package is made of."""
    yield from (path for path in sorted(package.iterdir()) if path.is_file() and path.suffix not in GENERATED)
    for path in sorted((package / "src").rglob("*")):
        if path.is_file() and path.suffix not in GENERATED and ".egg-info" not in path.parent.suffix:
            yield path


def digest_of(package: Path) -> str:
    """Return a digest of all that a wheel is made of: sources, build scripts, for what Python."""
    paths = [Path(__file__), *sources(package)]
    made_for = ""
    if is_compiled(package):
        paths += [PACKAGES / NATIVE, *sources(PACKAGES / "protocol")]
        made_for = f"{sys.version} {sysconfig.get_platform()} {os.environ.get('CFLAGS')}"
    digest = hashlib.sha256(made_for.encode())
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGES)} {len(content)} ".encode() + content)
    return digest.hexdigest()[:8]


def kept_wheel(name: str, digest: str) -> Path | None:
    """Return the wheel that was built from these sources, None if there is none."""
    return next((BUILT / f"{name}-{digest}").glob("*.whl"), None)


def build(name: str, digest: str) -> Path:
    """Build the wheel of a package, and delete wheels that were not used for `KEPT_DAYS`."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=BUILT) as folder:
        made = run_backend(PACKAGES / name, Path(folder))
        finished = Path(folder, "finished")
        finished.mkdir()
        set_local_version(made, f"clone.g{digest}", finished)
        with suppress(OSError):  # another session may have built it meanwhile
            finished.replace(BUILT / f"{name}-{digest}")
    for other in BUILT.iterdir():
        with suppress(FileNotFoundError):  # wheels are built side by side, each in a folder that then ends
            if time.time() - other.stat().st_mtime > KEPT_DAYS * 86_400:
                shutil.rmtree(other, ignore_errors=True)
    found = kept_wheel(name, digest)
    assert found is not None
    return found


def run_backend(package: Path, folder: Path) -> Path:
    """Build a wheel with the backend of a package; nothing but the compiled modules is left in the clone."""
    out = folder / "out"
    command = [sys.executable, "-c", HATCHLING, str(out)]
    if is_compiled(package):
        # Not by PEP 517: setuptools would take over modules that an earlier build left in `build/lib`.
        command = [
            sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder),
            "build", "--build-base", str(folder / "build"),
            "bdist_wheel", "--bdist-dir", str(folder / "wheel"), "--dist-dir", str(out),
        ]  # fmt: skip
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{package.name} could not be built:\n{done.stdout}{done.stderr}")
    return next(out.glob("*.whl"))


def set_local_version(wheel: Path, local: str, folder: Path) -> Path:
    """Write a copy of a wheel whose version has a local part into a folder; return its path."""
    project, version, *tags = wheel.stem.split("-")
    target = folder / f"{'-'.join([project, f'{version}+{local}', *tags])}.whl"
    old, new = f"{project}-{version}.dist-info/", f"{project}-{version}+{local}.dist-info/"
    record = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        for entry in source.infolist():
            name, content = entry.filename.replace(old, new), source.read(entry)
            if name == f"{new}RECORD":
                continue
            if name == f"{new}METADATA":
                content = re.sub(
                    rb"(?m)^Version: .*$", f"Version: {version}+{local}".encode(), content, count=1
                )
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
            entry.filename = name
            copy.writestr(entry, content, zipfile.ZIP_DEFLATED)
        copy.writestr(f"{new}RECORD", "".join(record) + f"{new}RECORD,,\n")
    return target


def release(names: Sequence[str], folder: Path) -> None:
    """Build wheels of packages as they would be uploaded into a folder."""
    compile_modules(name for name in names if is_compiled(PACKAGES / name))
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with TemporaryDirectory(dir=folder) as work:
            made = run_backend(PACKAGES / name, Path(work))
            made.replace(folder / made.name)


def main() -> None:
    """Print the paths of the wheels of packages; with `--release FOLDER`, write releases of them there."""
    match sys.argv[1:]:
        case ["--release", folder, *names]:
            release(names, Path(folder).resolve())
        case names:
            print(*wheels(names).values(), sep="\n")


if __name__ == "__main__":
    main()
