"""Check a package before it is released, and build what would be uploaded: `nox -s release -- broker`.

    python .ci/release.py NAME [--all-pythons]

It prints each thing that is wrong in one line, and uploads nothing: at the end it says which commands do.
Wheels of compiled packages are built for the running Python, with `--all-pythons` for each CPython of this
machine.

    python .ci/release.py NAME --fold VERSION

folds the fragments of changes into the changelog. What comes after that and before the tag is added to the
same version when it is run again.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
FRAGMENTS: Final = "changes.d"
GENERATED: Final = (".c", ".so", ".pyd", ".pyc")
START: Final = "<!-- changes start here -->\n"
UPLOAD: Final = "twine upload"


@dataclass(frozen=True)
class Package:
    """A package of a clone."""

    folder: Path

    @property
    def clone(self) -> Path:
        """The root of the clone."""
        return self.folder.parents[1]

    @property
    def project(self) -> dict[str, Any]:
        """The table `project` of its pyproject.toml."""
        text = (self.folder / "pyproject.toml").read_text(encoding="utf-8")
        found: dict[str, Any] = tomllib.loads(text)["project"]
        return found

    @property
    def version(self) -> str:
        """Its version."""
        return str(self.project["version"])

    @property
    def tag(self) -> str:
        """The tag of its release."""
        return f"{self.folder.name}-v{self.version}"


def problems(package: Package) -> Iterator[str]:
    """Yield what stands against the release of a package as it is in its clone."""
    name, version = package.folder.name, package.version
    if dirty := git(package.clone, "status", "--porcelain"):
        yield f"the tree is not clean: commit {', '.join(line[3:] for line in dirty.splitlines()[:3])}"
    if git(package.clone, "tag", "--list", package.tag):
        yield f"the tag {package.tag} is taken: raise the version in packages/{name}/pyproject.toml"
    for module in sorted((package.folder / "src" / "ottla").glob("*/__init__.py")):
        written = re.search(r'^__version__ = "(.*)"$', module.read_text(encoding="utf-8"), re.MULTILINE)
        if written is not None and written[1] != version:
            yield f"{module.relative_to(package.clone)} says {written[1]}, and pyproject.toml {version}"
    yield from _problems_of_changes(package)
    yield from _problems_of_siblings(package)


def _problems_of_changes(package: Package) -> Iterator[str]:
    name, version = package.folder.name, package.version
    fragments = sorted(path.name for path in (package.folder / FRAGMENTS).glob("*.md"))
    if fragments:
        yield f"{len(fragments)} changes are not in the changelog: nox -s changes -- {name} {version}"
    changelog = (package.folder / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\S+) \(\d{4}-\d{2}-\d{2}\)$", changelog, re.MULTILINE)
    if not released or released[0] != version:
        yield f"CHANGELOG.md begins with {released[0] if released else 'no version'}, not with {version}"


def _problems_of_siblings(package: Package) -> Iterator[str]:
    from packaging.requirements import Requirement

    for requirement in map(Requirement, package.project["dependencies"]):
        if not requirement.name.startswith("ottla-"):
            continue
        sibling = Package(package.folder.parent / requirement.name.removeprefix("ottla-"))
        if not requirement.specifier.contains(sibling.version, prereleases=True):
            yield f"{requirement} leaves out {requirement.name} {sibling.version} of this clone"


def problems_of_sdist(package: Package, archive: Path) -> Iterator[str]:
    """Yield what an sdist lacks, or has without need."""
    with tarfile.open(archive) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    wanted = ("src", "pyproject.toml", "README.md", "LICENSE")
    tracked = git(package.folder, "ls-files", "--", *wanted).splitlines()
    if missing := sorted({*tracked} - packed):
        yield f"{archive.name} lacks {', '.join(missing[:3])}"
    if (package.folder / "setup.py").exists() and "native_modules.py" not in packed:
        yield f"{archive.name} lacks native_modules.py, without which it does not compile"
    if generated := sorted(name for name in packed if name.endswith(GENERATED)):
        yield f"{archive.name} has generated files: {', '.join(generated[:3])}"


def problems_of_wheel(package: Package, wheel: Path) -> Iterator[str]:
    """Yield what a wheel lacks, or has without need."""
    with zipfile.ZipFile(wheel) as opened:
        packed = {*opened.namelist()}
    source = package.folder / "src"
    modules = ("*.py", "*.pyi", "*.typed")
    tracked = git(source, "ls-files", "--", *modules).splitlines() if source.exists() else []
    if missing := sorted({*tracked} - packed):
        yield f"{wheel.name} lacks {', '.join(missing[:3])}"
    if tests := sorted(name for name in packed if name.startswith("tests/")):
        yield f"{wheel.name} has tests: {tests[0]}"
    compiled = {path.with_suffix("").relative_to(source).as_posix() for path in source.rglob("*.pyx")}
    built = {name.partition(".")[0] for name in packed if name.endswith((".so", ".pyd"))}
    if not compiled <= built:
        yield f"{wheel.name} lacks compiled modules: {', '.join(sorted(compiled - built)[:3])}"
    if "-linux_" in wheel.name:
        yield f"{wheel.name} is for this machine alone: auditwheel has not repaired it"


def merged(changelog: str, draft: str) -> str:
    """Return a changelog with a draft of towncrier: at its top, or in the section of the same version."""
    heading, _, new = draft.strip().partition("\n")
    start, _, rest = changelog.partition(START)
    first, _, older = rest.strip("\n").partition("\n## ")
    if first.split(" (")[0] != heading.split(" (")[0]:
        return f"{start}{START}\n{draft.strip()}\n" + (f"\n{rest.strip()}\n" if rest.strip() else "")
    kinds = _by_kind(first.partition("\n")[2])
    for kind, lines in _by_kind(new).items():
        kinds[kind] = kinds.get(kind, []) + lines
    sections = (f"### {kind}\n\n" + "\n".join(lines) for kind, lines in kinds.items())
    return (
        f"{start}{START}\n{heading}\n\n" + "\n\n".join(sections) + "\n" + (f"\n## {older}\n" if older else "")
    )


def _by_kind(text: str) -> dict[str, list[str]]:
    """Return the lines of a version by the headings that they are under."""
    kinds: dict[str, list[str]] = {}
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        kind, _, lines = part.partition("\n")
        kinds[kind.strip()] = lines.strip("\n").split("\n")
    return kinds


def fold(package: Package, version: str) -> None:
    """Fold the fragments of a package into its changelog, and delete them."""
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", version]
    draft = subprocess.run(command, cwd=package.folder, check=True, capture_output=True, text=True).stdout
    path = package.folder / "CHANGELOG.md"
    path.write_text(merged(path.read_text(encoding="utf-8"), draft[draft.index("## ") :]), encoding="utf-8")
    for fragment in (package.folder / FRAGMENTS).glob("*.md"):
        fragment.unlink()


def git(folder: Path, *arguments: str) -> str:
    """Return what git prints in a folder."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def build(package: Package, dist: Path, *, all_pythons: bool) -> None:
    """Build the sdist and the wheels of a package."""
    python = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist)]
    if not (package.folder / "setup.py").exists():
        subprocess.run([*python, str(package.folder)], check=True, stdout=subprocess.DEVNULL)
        return
    subprocess.run([*python, "--sdist", str(package.folder)], check=True, stdout=subprocess.DEVNULL)
    sys.path.insert(0, str(Path(__file__).parent))
    import wheels

    this = Path(sys.base_prefix, "bin", "python3")
    found = list(wheels.known(wheels.candidates() if all_pythons else [this]))
    with tempfile.TemporaryDirectory() as folder:
        for interpreter in {interpreter.tag: interpreter for interpreter in found}.values():
            wheels.build(interpreter, Path(folder), dist, [package.folder.name])


def main() -> None:
    """Check, build, check what was built, and say what is next."""
    parser = argparse.ArgumentParser(description="Check a package before its release, and build it.")
    names = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
    parser.add_argument("name", choices=names)
    parser.add_argument("--all-pythons", action="store_true", help="wheels for each CPython of this machine")
    parser.add_argument("--fold", metavar="VERSION", help="fold the fragments of changes into the changelog")
    given = parser.parse_args()
    package = Package(ROOT / "packages" / given.name)
    if given.fold:
        fold(package, given.fold)
        return
    dist = ROOT / "dist" / "release" / given.name
    found = list(problems(package))
    shutil.rmtree(dist, ignore_errors=True)
    build(package, dist, all_pythons=given.all_pythons)
    made = sorted(dist.iterdir())
    for path in made:
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.relative_to(ROOT)}")
        check = problems_of_wheel if path.suffix == ".whl" else problems_of_sdist
        found += check(package, path)
    twine = [sys.executable, "-m", "twine", "check", "--strict", *map(str, made)]
    if (checked := subprocess.run(twine, capture_output=True, text=True, check=False)).returncode:
        found += [line for line in checked.stdout.splitlines() if line.strip()]
    if found:
        lines = (f"- {line}" for line in found)
        sys.exit("\n".join([f"{given.name} {package.version} cannot be released:", *lines]))
    print(f"{given.name} {package.version} can be released:")
    print(f"  git tag {package.tag} && git push origin {package.tag}")
    print(f"  {UPLOAD} {dist.relative_to(ROOT)}/*")


if __name__ == "__main__":
    main()
