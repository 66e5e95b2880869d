"""List the benchmarks, or run them one after another: `nox -s bench`, `nox -s bench -- NAME ...`.

Each is a script of its own, run in a process of its own. Options behind the names go to the
scripts: `nox -s bench -- log_append --quick`. `nox -s bench -- page` makes the page that compares with
others.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# From parts to the whole: later benchmarks measure combinations of what earlier ones measure.
IN_ORDER = (
    "protocol_codecs",
    "record_codec",
    "log_append",
    "log_compaction",
    "compaction_compared",
    "transactions_compared",
    "new_protocols",
    "broker_network",
    "replicated_broker",
    "replication",
    "many_partitions",
    "startup",
    "idle_connections",
    "tls",
    "logins",
    "access_changes",
    "broker_end_to_end",
    "producer_sdk",
    "consumer_sdk",
    "console_search",
    "client_latency",
    "spark_source",
    "spark_segments",
    "console_pages",
    "streams_overhead",
    "streams_language",
    "streams_commit_metadata",
    "streams_dedupe",
    "streams_peers",
)

PAGE = "page"
# `two_trees` needs the Python of another tree: `nox -s compare`. The page runs others of these.
# `share_groups` by itself only writes records for `new_protocols`.
APART = ("__main__", "two_trees", "comparison_page", "share_groups")


def benchmarks() -> dict[str, str]:
    """Return each benchmark's name and the first sentence of its docstring, in running order."""
    found = {path.stem: ast.parse(path.read_text()) for path in sorted(HERE.glob("*.py"))}
    scripts = {name: tree for name, tree in found.items() if _is_script(tree) and name not in APART}
    ordered = sorted(scripts, key=lambda name: IN_ORDER.index(name) if name in IN_ORDER else len(IN_ORDER))
    return {name: (ast.get_docstring(scripts[name]) or "").split("\n")[0] for name in ordered}


def _is_script(tree: ast.Module) -> bool:
    return any(isinstance(part, ast.If) and "__main__" in ast.unparse(part.test) for part in tree.body)


def run(name: str, options: list[str]) -> bool:
    """Run one benchmark; return whether it succeeded."""
    print(f"\n=== {name}", flush=True)
    done = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *options], check=False)
    if done.returncode:
        print(f"=== {name} ended with exit code {done.returncode}", flush=True)
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    if PAGE in arguments:
        return 0 if run("comparison_page", [part for part in arguments if part != PAGE]) else 1
    known = benchmarks()
    names = [argument for argument in arguments if not argument.startswith("-")]
    options = [argument for argument in arguments if argument.startswith("-")]
    unknown = [name for name in names if name not in known]
    if unknown or "--list" in options or "--help" in options:
        print("\n".join(f"{name:<{max(map(len, known))}}  {about}" for name, about in known.items()))
        print("".join(f"\nNo benchmark is called {name}." for name in unknown), end="\n" if unknown else "")
        return 2 if unknown else 0
    failed = [name for name in names or known if not run(name, options)]
    print(f"\nFailed: {', '.join(failed)}" if failed else "\nAll benchmarks ran.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
