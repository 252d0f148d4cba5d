"""The contract of ``detect``: every kind that has one, built in or not, proposes what its own model takes."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from auditord.cli.init_host import proposals
from auditord.config.kinds import InstalledKinds
from auditord.hooks import load_hooks
from auditord.testing import FakeHost
from auditord_hookspecs import Batch, CollectorContext, CollectorKind, PluginKind, RunConfig
from auditord_hookspecs.mapping import SiteRule
from auditord_hookspecs.proposals import Answers, Detect, Host, Proposal, Question

_SLURM: Final = "ClusterName             = hpc\nAccountingStorageType   = accounting_storage/{}\n"


class PrinterConfig(RunConfig):
    """Options of a third party's kind."""

    queue: str
    sites: tuple[SiteRule, ...]


async def print_jobs(config: PrinterConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    """Collect nothing."""
    del config, context
    yield Batch()


def detect_printer(host: Host) -> Proposal | None:
    """A print server, as a third party would look for it."""
    if host.run(["lpstat", "-v"]) is None:
        return None

    def options(answers: Answers) -> Mapping[str, Any]:
        return {"queue": answers["queue"], "sites": [{"name": answers["site"]}]}

    return Proposal("a print server", options, [Question("queue", "Which queue", "main")])


PRINTER: Final = CollectorKind(name="printer", config=PrinterConfig, collect=print_jobs, detect=detect_printer)
HOSTS: Final = {
    "slurm": FakeHost({"scontrol": _SLURM.format("slurmdbd"), "sacct": "slurm 22.05.8", "sinfo": "gpu:2"}),
    "slurm_epilog": FakeHost({"scontrol": _SLURM.format("none")}),
    "htcondor": FakeHost({"condor_history": "", "condor_ce_history": ""}),
    "kubernetes": FakeHost(files=["/etc/kubernetes/admin.conf"]),
    "apel": FakeHost(files=["/etc/apel/client.cfg"]),
    "waldur": FakeHost(files=["/etc/waldur/agent.yaml"]),
    "printer": FakeHost({"lpstat": "device for main"}),
}


def installed() -> InstalledKinds:
    kinds = load_hooks([]).kinds
    return InstalledKinds({**kinds.collectors, "printer": PRINTER}, kinds.plugins, kinds.senders)


def detectors() -> Mapping[str, Detect]:
    kinds = installed()
    declared: list[CollectorKind[Any] | PluginKind[Any]] = [*kinds.collectors.values(), *kinds.plugins.values()]
    return {kind.name: kind.detect for kind in declared if kind.detect is not None}


def found_by(name: str) -> Iterator[Proposal]:
    return (proposal for _, kind, proposal in proposals(installed(), HOSTS[name]) if kind == name)


@pytest.mark.parametrize("name", detectors())
def test_it_proposes_what_its_model_takes(name: str) -> None:
    (proposal,) = found_by(name)
    defaults = {question.name: question.default for question in proposal.questions}
    assert proposal.found
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", question) for question in defaults)
    if proposal.options is None:
        assert proposal.imports
        return
    options = proposal.options({"site": "KIT", "since": "2026-11-01", **defaults})
    installed().collectors[name].config.model_validate(options)


@pytest.mark.parametrize("name", detectors())
def test_it_finds_nothing_on_an_empty_host(name: str) -> None:
    assert detectors()[name](FakeHost()) is None


def test_a_host_plays_files_in_the_order_of_the_patterns() -> None:
    host = FakeHost(files=["/b/2.yml", "/a/1.yml", "/b/1.yml"])
    assert host.find("/b/*.yml", "/a/*.yml") == [Path("/b/1.yml"), Path("/b/2.yml"), Path("/a/1.yml")]
