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
        "in the collector, add to Cores: scores: [{name: HEPSPEC, value: 11.7}]",
        "assign local jobs to another site",
        "unloader.exclude_vos: no counterpart",
        "a collector queries the batch system itself",
    ):
        assert said in text
    assert "secret" not in text
    assert "AUDITOR" not in text


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
    text = import_files([changed(tmp_path, "withhold_dns", "withold_dns")], load_hooks([]).kinds)
    assert "unloader.withold_dns: the APEL client does not know this option and ignored it; a typing error?" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("HEPSPEC", "SPECint", "spec_updater.spec_type: 'SPECint' is not one of"),
        ("send_summaries = true", "send_summaries = maybe", "send_summaries: 'maybe' is neither true nor false"),
        ("[joiner]", "[joiners]", "has an option 'joiners'"),
        ("[db]\n", "hostname = x\n[db]\n", "not an INI file: File contains no section headers"),
        ("name = apelclient\n", "name = a\nname = b\n", "option 'name' in section 'db' already exists"),
    ],
)
def test_a_file_with_a_fault_is_refused_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("[", r"\[")):
        import_files([changed(tmp_path, old, new)], load_hooks([]).kinds)


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
