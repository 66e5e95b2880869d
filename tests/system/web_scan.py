"""Attack a console that allows changes with Wapiti; fail at findings above low.

Run `nox -s web_scan`. The console has a demo in a broker of its own. Wapiti follows its links, fills in its
forms and tries injections, cross-site scripts, request forgery, file inclusion and the like everywhere: once
as a stranger, who gets no further than the login, and once as an administrator who is logged in.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from argon2 import PasswordHasher

from browser.running import ConsoleProcess, Worker, registry, running, serving_json

LOW: Final = 1
"""Wapiti's levels: 0 is information, 1 low, 2 medium, 3 high, 4 critical."""
MODULES: Final = (
    "backup", "cookieflags", "crlf", "csp", "csrf", "exec", "file", "htaccess", "http_headers",
    "methods", "permanentxss", "redirect", "shellshock", "spring4shell", "sql", "ssrf", "timesql", "upload",
    "xss", "xxe",
)  # fmt: skip
STRANGERS: Final = ("brute_login_form",)
"""Modules for a stranger alone: they attack the login."""
LEFT_OUT: Final = {
    "buster": "tries 31,000 names of files in each folder; the console serves routes, which a test lists",
    "cms": "tells versions of Drupal, Joomla and others apart",
    "htp": "tells technologies apart by a list that it downloads",
    "https_redirect": "looks for a redirect to TLS; the console serves one port, with TLS or without",
    "ldap": "looks for a directory behind a page; there is none, and pages with the time on them deceive it",
    "log4shell": "is about Java, and needs a domain whose name server Wapiti asks",
    "network_device": "tells versions of routers apart",
    "nikto": "asks for a downloaded list of other products' scripts",
    "ssl": "is about TLS, which `nox -s tls_scan` looks at; the console is attacked in clear here",
    "takeover": "looks for subdomains; the console has an address of this machine",
    "wapp": "tells technologies apart by a list that it downloads",
    "wp_enum": "lists plug-ins of WordPress",
}
USER, PASSWORD = "root", "correct horse battery staple"
LEAST_PAGES: Final = 50
"""How many pages an administrator sees at least; a stranger sees the login."""
BOUND_S: Final = 7_200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wapiti", required=True)
    parser.add_argument("--module", help="modules, separated by commas; all that make sense without")
    parser.add_argument("--minutes", type=int, default=15, help="bound of the crawl, and of each module")
    options = parser.parse_args()
    check_modules(options.wapiti)
    found = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        logins = ("--logins", str(logins_in(folder)))
        with (
            running("ottla", folder) as cluster,
            serving_json(registry()) as schemas,
            serving_json(Worker()) as connect,
            ConsoleProcess(
                cluster.servers, folder / "console", "--allow-changes", *logins,
                "--schema-registry", schemas, "--connect", f"etl={connect}",
            ) as console,
        ):  # fmt: skip
            # The stranger comes last: many wrong passwords lock logins from this address out for a while.
            for who in ("an administrator", "a stranger"):
                print(f"--- as {who}", flush=True)
                found |= judge(attack(options, console.url, folder, is_stranger=who == "a stranger"))
    return found


def check_modules(wapiti: str) -> None:
    """Raise AssertionError if this Wapiti has a module that is neither run nor left out for a reason."""
    listed = subprocess.run([wapiti, "--list-modules"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"(?m)^\t(\w+)", listed))
    assert known == {*MODULES, *STRANGERS, *LEFT_OUT}, sorted(known ^ {*MODULES, *STRANGERS, *LEFT_OUT})


def logins_in(folder: Path) -> Path:
    """Write a file of logins with one administrator."""
    path = folder / "logins.toml"
    path.touch(mode=0o600)
    hashed = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    path.write_text(f'[[user]]\nname = "{USER}"\npassword = "{hashed}"\nrole = "administrator"\n')
    return path


def attack(options: argparse.Namespace, url: str, folder: Path, *, is_stranger: bool) -> dict[str, Any]:
    """Return Wapiti's report."""
    report = folder / f"report-{is_stranger}.json"
    seconds = str(options.minutes * 60)
    modules = options.module or ",".join((*MODULES, *STRANGERS) if is_stranger else MODULES)
    command = [
        options.wapiti, "--url", f"{url}/", "--scope", "domain", "--format", "json",
        "--output", str(report), "--store-session", str(folder / f"session-{is_stranger}"),
        "--store-config", str(folder),
        "--flush-session", "--max-links-per-page", "60", "--max-files-per-dir", "40", "--depth", "6",
        "--max-scan-time", seconds, "--max-attack-time", seconds, "--level", "1", "--no-bugreport",
        "--module", modules, "--exclude", f"{url}/static/*", "--verbose", "1",
        # Side by side, its first requests get a cookie each, and no token of a form would be right.
        "--tasks", "1", *([] if is_stranger else as_administrator(url)),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=BOUND_S)
    found: dict[str, Any] = json.loads(report.read_text())
    if not is_stranger:
        assert found["infos"]["crawled_pages_nbr"] > LEAST_PAGES, "it was not logged in"
    return found


def as_administrator(url: str) -> Sequence[str]:
    """Return the options for somebody who is logged in, and does not press the button that ends that."""
    login = ("--form-url", f"{url}/login", "--form-user", USER, "--form-password", PASSWORD)
    return (*login, "--start", f"{url}/c/local/", "--exclude", f"{url}/logout")


def judge(report: dict[str, Any]) -> int:
    """Print the findings; return 1 for one above low."""
    infos = report["infos"]
    print(f"{infos.get('crawled_pages_nbr', '?')} pages, {infos.get('version', '?')}")
    worst = 0
    for kind in ("vulnerabilities", "anomalies", "additionals"):
        for category, findings in report[kind].items():
            for finding in findings:
                worst = max(worst, finding["level"])
                where = f"{finding['method']} {finding['path']}"
                print(f"level {finding['level']} {category}: {where}: {finding['info']}")
    print("nothing above low" if worst <= LOW else "there are findings above low", flush=True)
    return int(worst > LOW)


if __name__ == "__main__":
    sys.exit(main())
