"""The files of an APEL client, as sites have them, become a plugin that reports the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from auditord.config.importing import import_files
from auditord.config.loading import load_text
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks
from auditord.testing import FakeHost
from auditord_builtin.apel.config import ApelConfig, MessageType
from auditord_builtin.apel.importing import detect
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import Converter
from auditord_builtin.slurm.runs import Run
from auditord_hookspecs import Produced, Record
from auditord_hookspecs.outcomes import Converted

FOLDER: Final = Path(__file__).parent / "client"
FILES: Final = [FOLDER / name for name in ("client.cfg", "parser.cfg", "sender.cfg")]


def imported(files: Sequence[Path]) -> tuple[str, ApelConfig]:
    kinds = load_hooks([]).kinds
    text = import_files(files, kinds)
    config = load_text(text, "it", kinds, {"HOME": "/"}).plugins["apel"]
    assert isinstance(config, ApelConfig)
    return text, config


def changed(tmp_path: Path, old: str, new: str) -> Path:
    file = tmp_path / "client.cfg"
    text = FILES[0].read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return file


def test_the_three_files_make_one_plugin() -> None:
    text, config = imported(FILES)
    assert config.site.sites_to_report == {"EXAMPLE-SITE": ("EXAMPLE-SITE",)}
    assert config.message_type is MessageType.SUMMARIES
    assert [(each.type, each.score, each.component) for each in config.benchmarks] == [("hepspec", "HEPSPEC", "Cores")]
    messaging = config.messaging
    assert (messaging.host, messaging.project, messaging.topic) == ("msg.argo.grnet.gr", "accounting", "gLite-APEL")
    assert str(messaging.client_cert) == "/etc/grid-security/hostcert.pem"
    assert str(messaging.ca_path) == "/etc/grid-security/certificates"
    assert config.site.publish_since is None
    for said in (
        "publish_since is missing",
        "ce is missing",
        "see collectors.slurm.components",
        "These sites, meta and components replace those of an earlier file",
        "unloader.exclude_vos: no counterpart",
        "a collector queries the batch system itself",
    ):
        assert said in text
    assert "secret" not in text
    assert "AUDITOR" not in text


START: Final = 1767225600
SPECS: Final = "manual_spec1 = ce1.example.org:9619,HEPscore23,12.4\nmanual_spec2 = ce2.example.org,HEPscore23,9.5\n"
COMMENT: Final = "{'voms':'/atlas/Role=pilot','user_dn':'/CN=x','submit_host':'%s.example.org'}"


def collected(files: Sequence[Path], comment: str) -> Record:
    """Convert a job with this comment by the collector that the files make."""
    kinds = load_hooks([]).kinds
    config = load_text(import_files(files, kinds), "it", kinds, {"HOME": "/"}).collectors["slurm"]
    assert isinstance(config, SlurmConfig)
    given = f"State=COMPLETED NodeList=n01 NCPUS=8 User=u Submit={START} Start={START} End={START + 3600}"
    row = {
        **dict.fromkeys(config.wanted_columns, ""),
        **dict(pair.split("=") for pair in given.split()),
        "Comment": comment,
    }
    outcome = Converter(config).convert(Run(row, ()))
    assert isinstance(outcome, Converted), outcome
    produced = outcome.produced
    assert isinstance(produced, Produced)
    return produced.record


def scores_of(record: Record) -> dict[str, float]:
    cores = next(each for each in record.components or () if each.name == "Cores")
    return {score.name: score.value for score in cores.scores}


def test_benchmarks_of_computing_elements_become_scores(tmp_path: Path) -> None:
    file = changed(tmp_path, "spec_type = HEPSPEC\nspec_value = 11.7\n", SPECS.replace("9.5", "12.4"))
    _, config = imported([file, *FILES[1:]])
    assert [(each.type, each.score) for each in config.benchmarks] == [("HEPscore23", "HEPscore23")]
    for comment in (COMMENT % "ce1", COMMENT % "ce3", ""):
        assert scores_of(collected([file, *FILES[1:]], comment)) == {"HEPscore23": 12.4}


def test_benchmarks_that_differ_go_by_the_computing_element(tmp_path: Path) -> None:
    file = changed(tmp_path, "spec_type = HEPSPEC", f"{SPECS}spec_type = HEPSPEC")
    _, config = imported([file, *FILES[1:]])
    assert [each.type for each in config.benchmarks] == ["HEPscore23", "hepspec"]
    names = ("ce1", "ce2", "ce22", "ce3", "arc-ce1", "ce2.sub")
    found = {name: scores_of(collected([file, *FILES[1:]], COMMENT % name)) for name in names}
    known = {"ce1": {"HEPscore23": 12.4}, "ce2": {"HEPscore23": 9.5}}
    assert found == {name: known.get(name, {"HEPSPEC": 11.7}) for name in names}
    assert scores_of(collected([file, *FILES[1:]], "")) == {"HEPSPEC": 11.7}


@pytest.mark.parametrize("second", ["HEPscore23,9.5", "HEPSPEC,12.4"])
def test_queues_of_one_computing_element_with_different_benchmarks_are_told(tmp_path: Path, second: str) -> None:
    queues = f"manual_spec1 = ce1:9619/slurm-long,HEPscore23,12.4\nmanual_spec2 = ce1:9619/slurm-gpu,{second}\n"
    file = changed(tmp_path, "spec_type = HEPSPEC", f"{queues}spec_type = HEPSPEC")
    for files in ([file, *FILES[1:]], [file, FILES[2]]):
        text, _ = imported(files)
        assert text.count("the queues of ce1 have different benchmarks") == 1
    same = changed(tmp_path, "spec_type = HEPSPEC", f"{queues.replace(second, 'HEPscore23,12.4')}spec_type = HEPSPEC")
    assert "different benchmarks" not in imported([same, *FILES[1:]])[0]


def test_the_jobs_of_a_computing_element_have_its_labels_and_others_another_site() -> None:
    grid, local = (collected(FILES, comment).meta or {} for comment in (COMMENT % "ce1", ""))
    assert {name: grid[name][0] for name in ("voms", "user_dn", "submit_host", "site_id")} == {
        "voms": "/atlas/Role=pilot",
        "user_dn": "/CN=x",
        "submit_host": "ce1.example.org",
        "site_id": "EXAMPLE-SITE",
    }
    assert local["site_id"] == ("local",)


def test_local_jobs_are_reported_where_the_client_did_so(tmp_path: Path) -> None:
    file = changed(tmp_path, "local_jobs = false", "local_jobs = true")
    grid, local = (collected([file, *FILES[1:]], comment).meta or {} for comment in (COMMENT % "ce1", ""))
    assert [meta["site_id"][0] for meta in (grid, local)] == ["EXAMPLE-SITE"] * 2
    assert [meta["submit_host"][0] for meta in (grid, local)] == ["ce1.example.org", "slurm.example.org"]


def test_without_slurm_the_scores_are_told(tmp_path: Path) -> None:
    file = changed(tmp_path, "spec_type = HEPSPEC", f"{SPECS}spec_type = HEPSPEC")
    text, _ = imported([file, FILES[2]])
    assert "add to Cores: scores: [{name: HEPscore23, value: 12.4} for ce1.example.org, " in text
    parser = tmp_path / "parser.cfg"
    parser.write_text(FILES[1].read_text().replace("type = SLURM", "type = HTCondor"))
    text, config = imported([file, parser, FILES[2]])
    assert "collectors:" not in text
    assert config.site.batch_system == "htcondor"
    assert "assign local jobs to another site" in text


def test_the_parser_alone_says_that_scores_are_missing() -> None:
    text = import_files([FILES[1], FILES[2]], load_hooks([]).kinds)
    assert "without a score, no job can be reported" in text


def test_the_log_level_is_taken_over(tmp_path: Path) -> None:
    text, _ = imported([changed(tmp_path, "level = INFO", "level = WARN"), *FILES[1:]])
    assert "level: warning" in text


def test_each_job_is_sent_where_the_client_sent_each(tmp_path: Path) -> None:
    file = changed(tmp_path, "send_summaries = true\nwithhold_dns = false", "withhold_dns = true")
    _, config = imported([file, FILES[2]])
    assert config.message_type is MessageType.INDIVIDUAL_JOBS
    assert config.individual_job_fields is not None
    assert config.individual_job_fields.optional.GlobalUserName is None
    assert config.individual_job_fields.optional.FQAN is not None


@pytest.mark.parametrize(("protocol", "remarks"), [("", 0), ("protocol = ams\n", 0), ("protocol = STOMP\n", 1)])
def test_a_sender_speaks_ams_unless_it_says_otherwise(tmp_path: Path, protocol: str, remarks: int) -> None:
    text = FILES[2].read_text()
    kept = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("protocol"))
    file = tmp_path / "sender.cfg"
    file.write_text(kept.replace("[sender]\n", f"[sender]\n{protocol}"))
    written, _ = imported([FILES[0], file])
    assert written.count("APEL no longer accepts STOMP") == remarks


def test_an_option_that_the_client_does_not_know_is_named(tmp_path: Path) -> None:
    text = import_files(
        [changed(tmp_path, "withhold_dns", "dict_benchmark_type = x\nwithold_dns")], load_hooks([]).kinds
    )
    assert "unloader.dict_benchmark_type: messages name the benchmark of each row" in text
    assert "unloader.withold_dns: the APEL client does not know this option and ignored it; a typing error?" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("HEPSPEC", "SPECint", "spec_updater.spec_type: 'SPECint' is not one of"),
        ("spec_type", "manual_spec1 = ce,HEPscore23,12.4,5\nspec_type", "manual_spec1: '12.4,5' is not a number"),
        ("spec_type", "manual_spec1 = ce,12.4\nspec_type", "manual_spec1: '12.4' is not one of"),
        ("11.7", "eleven", "spec_type: 'eleven' is not a number"),
        ("send_summaries = true", "send_summaries = maybe", "send_summaries: 'maybe' is neither true nor false"),
        ("[joiner]", "[joiners]", "has an option 'joiners'"),
        ("[db]\n", "hostname = x\n[db]\n", "not an INI file: File contains no section headers"),
        ("name = apelclient\n", "name = a\nname = b\n", "option 'name' in section 'db' already exists"),
    ],
)
def test_a_file_with_a_fault_is_refused_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("[", r"\[")):
        import_files([changed(tmp_path, old, new)], load_hooks([]).kinds)


def test_a_file_in_another_encoding_is_refused_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "client.cfg"
    file.write_bytes("[db]\n# Zürich\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"client\.cfg:2: not UTF-8: "):
        import_files([file], load_hooks([]).kinds)


def test_files_of_two_sites_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"sites_to_report: .* differ"):
        import_files([changed(tmp_path, "EXAMPLE-SITE", "OTHER"), FILES[1]], load_hooks([]).kinds)


@pytest.mark.parametrize("text", ["# [db]\n# name = x\n", "[db]\n# name = x\n[joiner]\n"])
def test_a_file_of_comments_sets_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "client.cfg").write_text(text)
    with pytest.raises(ConfigurationError, match="sets nothing"):
        import_files([tmp_path / "client.cfg"], load_hooks([]).kinds)


def test_the_name_of_the_site_is_asked_for_where_the_shipped_file_leaves_it_empty(tmp_path: Path) -> None:
    file = changed(tmp_path, "EXAMPLE-SITE", "")
    assert "spec_updater.site_name: this is empty: set plugins.apel.site.sites_to_report" in import_files(
        [file], load_hooks([]).kinds
    )


def test_the_client_is_found_by_its_files() -> None:
    proposal = detect(FakeHost(files=["/etc/apel/sender.cfg", "/etc/apel/client.cfg"]))
    assert proposal is not None
    assert [path.name for path in proposal.imports] == ["client.cfg", "sender.cfg"]
