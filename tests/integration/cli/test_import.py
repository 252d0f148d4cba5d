"""AUDITOR's files become a configuration that loads."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.config.loading import load_text
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks
from auditord.reporting import LabelKeys

SERVER = """\
application: {addr: ["0.0.0.0", "::1"], port: "8080", web_workers: 4}
database: {host: localhost, port: 5432, username: a, password: hidden, database_name: auditor, require_ssl: false}
metrics:
  database:
    frequency: 60
    metrics: [RecordCount, RecordCountPerSite]
    meta_key_group: voms
log_level: warn
tls_config: {use_tls: false}
ignore_record_exists_error: true
"""
SLURM = """\
addr: localhost
port: 8000
record_prefix: hpc
sacct_frequency: 300
sender_frequency: 60
database_path: sqlite:///var/lib/x.db
log_level: off
job_filter: {status: [completed, failed]}
sites: [{name: A, only_if: {key: Partition, matches: "^a"}}, {name: B}]
tls_config: {use_tls: false}
"""

Import = Callable[..., Result]


@pytest.fixture
def import_texts(tmp_path: Path) -> Import:
    def run(*texts: str) -> Result:
        files = [tmp_path / f"{number}.yml" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        return CliRunner(env={"HOME": "/h"}).invoke(auditord, ["config", "import", *map(str, files)])

    return run


def loaded(result: Result) -> Any:
    assert result.exception is None, result.output
    return load_text(result.output, "imported", load_hooks([]).kinds, os.environ)


def test_a_servers_file_keeps_its_meaning(import_texts: Import) -> None:
    configuration = loaded(import_texts(SERVER))
    assert [str(address) for address in configuration.api.listen] == ["0.0.0.0:8080", "[::1]:8080"]
    assert configuration.api.duplicates.value == "ignore"
    database = configuration.metrics.database
    assert (database.interval.seconds, database.metrics) == (60, ("RecordCount", "RecordCountPerSite"))
    assert configuration.labels.keys() == LabelKeys("site_id", "voms", "user_id")
    assert configuration.logging.level == "warning"


def test_what_means_something_else_or_is_dropped_is_said(import_texts: Import) -> None:
    output = import_texts(SERVER).output
    for text in (
        "without TLS",
        "these count by site_id (AUDITOR: site), user_id (AUDITOR: user)",
        "(AUDITOR dropped the batch)",
    ):
        assert text in output
    for option in ("application.web_workers", "database"):
        assert f"#   {option}: " in output
    assert "hidden" not in output


def test_a_reason_is_said_once(import_texts: Import) -> None:
    apel = Path(__file__).parents[2] / "builtin" / "apel" / "auditor_apel.yml"
    output = import_texts(apel.read_text()).output
    assert output.count("the plugin reads this daemon's own records") == 1
    assert "#   auditor.ip, auditor.port, auditor.timeout, auditor.use_tls: the plugin" in output
    assert output.count("divide_by: 1000 is left out") == 1
    assert "# see plugins.apel.summary_fields.mandatory.NormalisedCpuDuration.base_value\n" in output


def test_the_server_and_a_collector_become_one_file(import_texts: Import) -> None:
    configuration = loaded(import_texts(SERVER, SLURM))
    slurm = configuration.collectors["slurm"]
    assert (slurm.kind, slurm.record_prefix, slurm.interval.seconds) == ("slurm", "hpc", 300)
    assert len(configuration.api.listen) == 2


def test_what_was_open_stays_open_and_says_so(import_texts: Import) -> None:
    assert loaded(import_texts(SERVER)).api.allow_insecure
    assert not loaded(import_texts("application: {port: 8000}\n")).api.allow_insecure


def test_mutual_tls_comes_over_without_the_plain_port_beside_it(import_texts: Import) -> None:
    files = "ca_cert_path: /ca.pem, server_cert_path: /host.pem, server_key_path: /host.key"
    tls = f"{{use_tls: true, https_addr: [127.0.0.2, '::1'], {files}}}"
    result = import_texts(f"application: {{port: 8000}}\ntls_config: {tls}\n")
    assert "AUDITOR also left its plain port open" in result.output
    listen = loaded(result).api.listen
    assert [str(address) for address in listen] == ["127.0.0.2:8443", "[::1]:8443"]
    assert [str(file) for file in listen[0].tls.files] == ["/host.pem", "/host.key", "/ca.pem"]
    assert listen[0].tls.client_ca is not None
    assert listen[0].tls.client_certificate == "required"


def test_a_short_server_file_has_auditors_defaults(import_texts: Import) -> None:
    configuration = loaded(import_texts("application: {port: 8000}\n"))
    assert [str(address) for address in configuration.api.listen] == ["127.0.0.1:8000"]
    assert configuration.metrics.database.metrics == ()
    assert configuration.api.duplicates.value == "same-run"


def test_the_level_of_one_program_does_not_become_the_daemons(import_texts: Import) -> None:
    result = import_texts(SLURM)
    assert loaded(result).logging.level == "info"
    assert (
        "#   log_level: error was the level of one program; logging.level applies to the whole daemon\n"
        in result.output
    )
    assert loaded(import_texts(SLURM, SERVER)).logging.level == "warning", "the server's file says it for all"


@pytest.mark.parametrize("level", ["off", "error", "warn", "info", "debug", "trace", "WARN", "loud"])
def test_every_log_level_has_a_counterpart(import_texts: Import, level: str) -> None:
    assert loaded(import_texts(f"application: {{port: 1}}\nlog_level: {level}\n")).logging.level
    assert loaded(import_texts(f"sacct_frequency: 60\nlog_level: {level.replace('loud', 'off')}\n")).logging.level


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["colour: red\n"], r"0\.yml is not a configuration file of AUDITOR's server, .*its slurm collector"),
        (["application: {port: eight}\n"], r"0\.yml cannot be imported, AUDITOR would refuse it: .*eight"),
        (
            ["application: {port: 1}\napplications: 2\n"],
            "no program that .* has an option 'applications'",
        ),
        ([SLURM, SLURM.replace("hpc", "grid")], r"collectors\.slurm\.record_prefix: .*0\.yml and .*1\.yml differ"),
        (["a: 1\na: 2\n"], r"0\.yml:2: the key 'a' is repeated"),
        (["metrics: {database: {metrics: [RecordCuont]}}\n"], r"the imported configuration:\d+: .*metrics\[0\]"),
    ],
)
def test_what_cannot_be_imported_is_said(import_texts: Import, texts: list[str], message: str) -> None:
    result = import_texts(*texts)
    assert isinstance(result.exception, ConfigurationError)
    with pytest.raises(ConfigurationError, match=message):
        raise result.exception


def test_the_imported_file_passes_the_check(import_texts: Import, tmp_path: Path) -> None:
    (tmp_path / "ours.yml").write_text(import_texts(SLURM).output)
    runner = CliRunner(env={"HOME": "/h"})
    result = runner.invoke(auditord, ["--config", str(tmp_path / "ours.yml"), "config", "show", "--output", "json"])
    assert json.loads(result.output)["configuration"]["collectors"]["slurm"]["record_prefix"] == "hpc"
