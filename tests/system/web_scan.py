"""Attack a console that allows changes with Wapiti; fail at findings above low.

Run `nox -s web_scan`. The console has a demo in a broker of its own. Wapiti follows its links, fills in its
forms and tries injections, cross-site scripts, request forgery, file inclusion and the like everywhere.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from browser.running import ConsoleProcess, running

LOW: Final = 1
"""Wapiti's levels: 0 is information, 1 low, 2 medium, 3 high, 4 critical."""
MODULES: Final = (
    "backup,cookieflags,crlf,csp,csrf,exec,file,http_headers,methods,permanentxss,redirect,sql,ssrf,"
    "timesql,xss,xxe,htaccess,information_disclosure,inconsistent_redirection,unrestricted_upload,upload"
)
BOUND_S: Final = 1_500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wapiti", required=True)
    parser.add_argument("--module", default=MODULES, help="modules, separated by commas")
    parser.add_argument("--minutes", type=int, default=15, help="bound of the crawl, and of the attacks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            running("ottla", folder) as cluster,
            ConsoleProcess(cluster.servers, folder / "console", "--allow-changes") as console,
        ):
            report = attack(options, console.url, folder)
    return judge(report)


def attack(options: argparse.Namespace, url: str, folder: Path) -> dict[str, Any]:
    """Return Wapiti's report."""
    report = folder / "report.json"
    seconds = str(options.minutes * 60)
    command = [
        options.wapiti, "--url", f"{url}/c/local/", "--scope", "domain", "--format", "json",
        "--output", str(report), "--store-session", str(folder / "session"), "--store-config", str(folder),
        "--flush-session", "--max-links-per-page", "60", "--max-files-per-dir", "40", "--depth", "6",
        "--max-scan-time", seconds, "--max-attack-time", seconds, "--level", "1", "--no-bugreport",
        "--module", options.module, "--tasks", "4", "--exclude", f"{url}/static/*", "--verbose", "1",
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=BOUND_S * 2)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


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
    print("nothing above low" if worst <= LOW else "there are findings above low")
    return int(worst > LOW)


if __name__ == "__main__":
    sys.exit(main())
