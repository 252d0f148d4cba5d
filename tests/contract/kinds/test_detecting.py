"""The contract of ``detect``: every kind that has one, built in or not, proposes what its own model takes."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from auditord.cli.init import proposals
from auditord.config.kinds import InstalledKinds
from auditord.hooks import load_hooks
from auditord.testing import FakeHost
from auditord_hookspecs import Batch, CollectorContext, CollectorKind, PluginKind, RunConfig, TransformKind
from auditord_hookspecs.mapping import SiteRule
from auditord_hookspecs.proposals import Answers, Detect, Host, NewSecret, Proposal, Question

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
    "pseudonyms": FakeHost(),
}


def installed() -> InstalledKinds:
    kinds = load_hooks([]).kinds
    collectors = {**kinds.collectors, "printer": PRINTER}
    return InstalledKinds(collectors, kinds.plugins, kinds.senders, transforms=kinds.transforms)


def detectors() -> Mapping[str, Detect]:
    kinds = installed()
    declared: list[CollectorKind[Any] | PluginKind[Any] | TransformKind[Any]]
    declared = [*kinds.collectors.values(), *kinds.plugins.values(), *kinds.transforms.values()]
    return {kind.name: kind.detect for kind in declared if kind.detect is not None}


def found_by(name: str) -> Iterator[Proposal]:
    found = ((kind, each) for _, kind, each in proposals(installed(), HOSTS[name]))
    return (each for kind, each in found if kind == name and isinstance(each, Proposal))


@pytest.mark.parametrize("name", sorted(detectors().keys() - {"pseudonyms"}))
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


def test_slurm_s_answers_become_options() -> None:
    (proposal,) = found_by("slurm")
    assert proposal.options is not None
    answers = {"site": "KIT", "since": "2026-11-01", "score": "9.8, genoa=12.4,gpu.a=7", "memory_peaks": "Yes"}
    options = proposal.options(answers)
    cores, memory, cpu_time, peaks, gpus = options["components"]
    assert (options["earliest_datetime"], options["sites"]) == ("2026-11-01T00:00:00Z", [{"name": "KIT"}])
    assert [(each["name"], each["key"]) for each in options["meta"]] == [
        ("account", "Account"),
        ("partition", "Partition"),
    ]
    assert cores["scores"] == [
        {"name": "HEPscore23", "value": 12.4, "only_if": {"key": "Partition", "matches": "^genoa$"}},
        {"name": "HEPscore23", "value": 7.0, "only_if": {"key": "Partition", "matches": r"^gpu\.a$"}},
        {"name": "HEPscore23", "value": 9.8},
    ]
    assert [each["key"] for each in (cores, cpu_time, peaks)] == ["NCPUS", "TotalCPU", "MaxRSS"]
    assert [(each["name"], each["sub_key"]) for each in (memory, gpus)] == [("Memory", "mem"), ("GPU", "gres/gpu")]
    assert "scores" not in proposal.options({**answers, "score": "", "memory_peaks": "no"})["components"][0]
    for wrong in ({"score": "genoa=fast"}, {"memory_peaks": "perhaps"}):
        with pytest.raises(ValueError, match=r"is neither a number nor partition=number|is neither yes nor no"):
            proposal.options({**answers, **wrong})


def test_a_sacct_that_answers_is_found_without_scontrol() -> None:
    kinds = load_hooks([]).kinds
    (proposal,) = (each for _, name, each in proposals(kinds, FakeHost({"sacct": ""})) if name != "pseudonyms")
    assert isinstance(proposal, Proposal)
    assert proposal.found == "Slurm: sacct answers, although scontrol does not"
    without_database = FakeHost({"sacct": "", "scontrol": _SLURM.format("none")})
    assert [name for _, name, _ in proposals(kinds, without_database) if name != "pseudonyms"] == ["slurm_epilog"]


def test_pseudonyms_are_a_choice_that_no_site_has_to_take() -> None:
    (proposal,) = found_by("pseudonyms")
    assert proposal.options is not None
    answers = {"site": "KIT", "since": "2026-11-01"}
    assert proposal.options({**answers, "users": proposal.questions[0].default}) == {}
    assert proposal.options({**answers, "users": "pseudonyms"}) == {"key": NewSecret("pseudonym-key")}
    with pytest.raises(ValueError, match="is neither names nor pseudonyms"):
        proposal.options({**answers, "users": "hashes"})


@pytest.mark.parametrize("name", sorted(detectors().keys() - {"pseudonyms"}))
def test_it_finds_nothing_on_an_empty_host(name: str) -> None:
    assert detectors()[name](FakeHost()) is None


def test_a_host_plays_files_in_the_order_of_the_patterns() -> None:
    host = FakeHost(files=["/b/2.yml", "/a/1.yml", "/b/1.yml"])
    assert host.find("/b/*.yml", "/a/*.yml") == [Path("/b/1.yml"), Path("/b/2.yml"), Path("/a/1.yml")]
