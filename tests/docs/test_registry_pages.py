"""The page about schema registries: its programs run against a broker and a registry."""

from __future__ import annotations

from pathlib import Path

from ottla.broker.testing import BrokerThread
from ottla.registry.server.app import PATHS
from ottla.registry.testing import RegistryThread
from peers.snippets import PRINTED_SERVERS, ROOT, blocks, run_program

PAGE = ROOT / "docs/howto/use-a-schema-registry.md"
README = ROOT / "packages/registry/README.md"
REFERENCE = ROOT / "docs/reference/registry.md"
PRINTED_REGISTRY = "http://127.0.0.1:8081"


def test_programs_that_ask_a_registry_run_as_they_stand(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "broker") as broker, RegistryThread(broker.bootstrap_servers) as registry:
        for page in (PAGE, README):
            programs = blocks(page, "needs registry")
            assert programs
            for program in programs:
                code = program.code.replace(PRINTED_SERVERS, broker.bootstrap_servers)
                code = code.replace(PRINTED_REGISTRY, registry.url)
                run_program(code, tmp_path, f"{page.stem}_{program.line}.py")


def test_the_reference_lists_each_path_with_its_methods() -> None:
    text = REFERENCE.read_text(encoding="utf-8")

    for path, answers in PATHS.items():
        assert f"| `{path}` | {', '.join(answers)} |" in text
    assert text.count("\n| `/") == len(PATHS)
