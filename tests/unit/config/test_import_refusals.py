"""A file that ``auditord config import`` cannot take says why."""

from pathlib import Path

import pytest
import yaml

from auditord import manual
from auditord.config.importing import import_files
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks

KINDS = load_hooks([]).kinds
SLURM = "sacct_frequency: 10\nsites: [{name: A}]\n"


def refusal_of(tmp_path: Path, text: str) -> str:
    file = tmp_path / "c.yml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        import_files([file], KINDS)
    return str(caught.value)


@pytest.mark.parametrize("text", ["", "# all of it\n# is a comment\n", "{}\n"])
def test_a_file_that_sets_nothing_is_said_to(tmp_path: Path, text: str) -> None:
    assert "c.yml sets nothing" in refusal_of(tmp_path, text)


def test_the_one_unknown_option_is_named(tmp_path: Path) -> None:
    assert "has an option 'sacct_freqency'" in refusal_of(tmp_path, f"{SLURM}sacct_freqency: 5\n")


def test_a_file_of_something_else_is_told_what_is_known(tmp_path: Path) -> None:
    assert "its slurm collector" in refusal_of(tmp_path, "foo: 1\nbar: 2\n")


@pytest.mark.parametrize(("address", "hosts"), [("0.0.0.0", ["auditor.example.org"]), ("127.0.0.1", None)])  # noqa: S104 only parsed
def test_an_open_server_gets_the_names_by_which_its_clients_ask(
    tmp_path: Path, address: str, hosts: list[str] | None
) -> None:
    server, client = tmp_path / "server.yml", tmp_path / "client.yml"
    server.write_text(f"application: {{addr: {address}, port: 8000}}\n")
    client.write_text(f"{SLURM}addr: Auditor.example.org\n")
    api = yaml.safe_load(import_files([server, client], KINDS))["api"]
    assert api.get("hosts") == hosts


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_server_s_file_says_what_is_different_here(tmp_path: Path, *, is_guarded: bool) -> None:
    server = tmp_path / "server.yml"
    metrics = "metrics: {database: {metrics: [RecordCount, RecordCountPerUser]}}\n"
    tls = "tls_config: {use_tls: true, server_cert_path: /c, server_key_path: /k, ca_cert_path: /a}\n"
    rbac = "rbac_config: {enforce_rbac: true, monitoring_role_cn: [a]}\n"
    server.write_text(f"application: {{addr: 127.0.0.1}}\n{metrics}{(tls + rbac) if is_guarded else ''}")
    printed = import_files([server], KINDS)
    assert all(word in printed for word in ("250 conditions", "2 MiB", "403", "manual from-auditor"))
    assert ("RecordCountPerUser names users" in printed) is not is_guarded
    page = Path(manual.__file__).with_name("from-auditor.md").read_text()
    assert all(word in page for word in ("250 conditions", "2 MiB", "403", "421", "RecordCountPerUser"))
