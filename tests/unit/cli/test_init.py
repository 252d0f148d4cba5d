"""``auditord init`` on hosts with and without Slurm; the programs are played, the configuration is the real one."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord, init
from auditord.cli.init import ThisHost
from auditord.config.loading import load_with_sources
from auditord.config.model import Configuration
from auditord.hooks import load_hooks
from auditord.testing import FakeHost
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.slurm.config import SlurmConfig

CONFIG = "ClusterName             = hpc\nAccountingStorageType   = accounting_storage/{storage}\n"
ANSWERS = "site: KIT\nsince: 2026-10-01\nscore: 'genoa=12.4, 9.8'\nmemory_peaks: true\nusers: names\ngroup: account\n"

Play = Callable[..., None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play a host: the output of its programs by their names, its files and variables; what is written is not tried."""

    def played(files: Sequence[str] = (), environ: Mapping[str, str] | None = None, **programs: str) -> None:
        monkeypatch.setattr(init, "ThisHost", lambda: FakeHost(programs, files, environ or {}))

    def look_at_result(since: datetime) -> None:
        assert since.tzinfo is not None

    monkeypatch.setattr(init, "look_at_result", look_at_result)
    return played


def call(file: Path, *words: str) -> Result:
    return CliRunner().invoke(auditord, ["init", "--config", str(file), *words])


def loaded(file: Path) -> Configuration:
    return load_with_sources([file], load_hooks([]).kinds, {"HOME": "/home/me"}, lambda _: None).configuration


def slurm_of(file: Path) -> SlurmConfig:
    found = loaded(file).collectors["slurm"]
    assert isinstance(found, SlurmConfig)
    return found


def slurm_host(play: Play, gres: str = "(null)") -> None:
    play(scontrol=CONFIG.format(storage="slurmdbd"), sacct="slurm 22.05.8", sinfo=gres)


def test_slurm_with_a_database_is_read_by_sacct(play: Play, tmp_path: Path) -> None:
    slurm_host(play, "gpu:a100:4\n")
    file, answers = tmp_path / "a.yml", tmp_path / "answers.yml"
    answers.write_text(ANSWERS)
    done = call(file, "--answers", str(answers))
    assert done.exit_code == 0, done.output
    assert "found: Slurm cluster hpc, with slurmdbd" in done.output
    assert f"auditord collect slurm --dry-run --from 2026-10-01 --config {file}" in done.output
    config = slurm_of(file)
    assert [each.name for each in config.components] == ["Cores", "Memory", "TotalCPU", "MaxRSS", "GPU"]
    scores = config.components[0].scores
    assert [(str(each.value), len(each.only_if)) for each in scores] == [("12.4", 1), ("9.8", 0)]
    assert config.sites[0].name == "KIT"
    assert f"{config.earliest_datetime}" == "2026-10-01 00:00:00+00:00"
    assert "# Jobs that ended before this are ignored." in file.read_text()


def test_with_yes_nothing_is_asked_and_the_defaults_are_cheap(play: Play, tmp_path: Path) -> None:
    slurm_host(play)
    assert call(tmp_path / "a.yml", "--yes").exit_code == 0
    config = slurm_of(tmp_path / "a.yml")
    assert [each.name for each in config.components] == ["Cores", "Memory", "TotalCPU"]
    assert config.components[0].scores == ()


def test_gpus_that_slurm_does_not_account_for_are_named_with_the_line_to_add(play: Play, tmp_path: Path) -> None:
    shown = CONFIG.format(storage="slurmdbd") + "GresTypes = gpu\nAccountingStorageTRES = cpu,mem,energy,billing\n"
    play(scontrol=shown, sacct="slurm 22.05.8", sinfo="gpu:4")
    done = call(tmp_path / "a.yml", "--yes")
    assert "it does not account for GPUs: set AccountingStorageTRES=gres/gpu in slurm.conf" in done.output
    assert "Records get GPUs once slurm.conf has AccountingStorageTRES=gres/gpu." in (tmp_path / "a.yml").read_text()
    assert [each.name for each in slurm_of(tmp_path / "a.yml").components][-1] == "GPU"


def test_slurm_without_a_database_is_noted_at_the_ends_of_jobs(play: Play, tmp_path: Path) -> None:
    play(scontrol=CONFIG.format(storage="none"), sacct="slurm 22.05.8")
    done = call(tmp_path / "a.yml", "--yes")
    assert "EpilogSlurmctld=auditord-epilog" in done.output
    assert list(loaded(tmp_path / "a.yml").collectors) == ["slurm_epilog"]


@pytest.mark.parametrize(
    ("enforced", "words", "group"),
    [
        ("none", (), "group_id"),
        ("associations,limits", (), "account"),
        ("associations,limits", ("--answer", "group=unix"), "group_id"),
        ("none", ("--answer", "group=account"), "account"),
    ],
)
def test_the_group_is_slurm_s_account_where_each_job_has_one(
    play: Play, tmp_path: Path, enforced: str, words: Sequence[str], group: str
) -> None:
    shown = CONFIG.format(storage="slurmdbd") + f"AccountingStorageEnforce = {enforced}\n"
    play(scontrol=shown, sacct="slurm 22.05.8")
    assert call(tmp_path / "a.yml", "--yes", *words).exit_code == 0
    assert loaded(tmp_path / "a.yml").labels.group == group
    assert [rule.name for rule in slurm_of(tmp_path / "a.yml").meta] == ["account", "partition"]


@pytest.mark.parametrize(
    ("programs", "program"),
    [
        ({"condor_history": ""}, "condor_history"),
        ({"condor_history": "", "condor_ce_history": "ce#1.0#1"}, "condor_ce_history"),
    ],
)
def test_htcondor_is_read_by_its_history(play: Play, tmp_path: Path, programs: dict[str, str], program: str) -> None:
    play(**programs)
    assert call(tmp_path / "a.yml", "--yes").exit_code == 0
    config = loaded(tmp_path / "a.yml").collectors["htcondor"]
    assert isinstance(config, HTCondorConfig)
    assert config.condor_history == (program,)


def test_a_host_without_a_batch_system_serves_the_api_alone(play: Play, tmp_path: Path) -> None:
    play()
    done = call(tmp_path / "a.yml", "--yes")
    assert "found no batch system" in done.output
    assert loaded(tmp_path / "a.yml").collectors == {}


def test_a_host_without_a_batch_system_needs_a_first_day_too(play: Play, tmp_path: Path) -> None:
    play()
    (tmp_path / "answers.yml").write_text("since: 1 Nov 2026\n")
    done = call(tmp_path / "a.yml", "--yes", "--answers", str(tmp_path / "answers.yml"))
    assert str(done.exception) == "since: '1 Nov 2026' is not a day such as 2026-11-01"
    assert not (tmp_path / "a.yml").exists()


@pytest.mark.parametrize("settings", ["mine: 1\n", "state_dir: /srv/auditord\n", "# nothing yet\n"])
def test_a_file_that_is_there_is_never_changed(play: Play, tmp_path: Path, settings: str) -> None:
    slurm_host(play)
    (tmp_path / "a.yml").write_text(settings)
    done = call(tmp_path / "a.yml", "--yes")
    assert done.exit_code == 1
    assert "a.yml exists, and init does not change it: move it away" in str(done.exception)
    assert (tmp_path / "a.yml").read_text() == settings


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ("score: fast\n", "score: 'fast' is neither a number"),
        ("memory_peaks: perhaps\n", "'perhaps' is neither yes nor no"),
        ("since: yesterday\n", "since: 'yesterday' is not a day such as 2026-11-01"),
        ("group: gid\n", "group: 'gid' is neither account nor unix"),
        (
            "sites: KIT\n",
            "there is no question 'sites' on this host; questions are group, memory_peaks, score, since, site",
        ),
    ],
)
def test_an_answer_that_makes_no_sense_writes_nothing(play: Play, tmp_path: Path, answers: str, said: str) -> None:
    slurm_host(play)
    (tmp_path / "answers.yml").write_text(answers)
    done = call(tmp_path / "a.yml", "--yes", "--answers", str(tmp_path / "answers.yml"))
    assert said in str(done.exception)
    assert not (tmp_path / "a.yml").exists()


def test_a_wrong_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost({"scontrol": CONFIG.format(storage="slurmdbd"), "sacct": "slurm 22.05.8"})
    found = init.look_around(host, load_hooks([]).kinds)
    given = {"site": "KIT", "users": "names"}
    lines = "01.11.2026\n2026-11-01\nfast\n12.4\nperhaps\nno\nGroup\nunix\n"
    with CliRunner().isolation(lines) as (output, *_):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        answers = init.answers_to(found, datetime(2026, 11, 29, tzinfo=UTC), given, ask=True)
    assert answers == {**given, "since": "2026-11-01", "score": "12.4", "memory_peaks": "no", "group": "unix"}
    assert output.getvalue().decode().count("Error: ") == 4


class SilentSlurm(FakeHost, frozen=True):
    """A host with Slurm's programs, of which none reaches a daemon."""

    def run(self, argv: Sequence[str]) -> str | None:
        return "slurm 22.05.8" if list(argv) == ["sacct", "--version"] else super().run(argv)


@pytest.mark.usefixtures("play")  # which leaves out the dry runs
def test_slurm_that_does_not_answer_is_no_host_without_a_batch_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(init, "ThisHost", SilentSlurm)
    done = call(tmp_path / "a.yml", "--yes")
    assert "Slurm is installed, but neither scontrol nor sacct answers" in str(done.exception)
    assert not (tmp_path / "a.yml").exists()
    monkeypatch.setattr(init, "ThisHost", lambda: SilentSlurm({"condor_history": ""}))
    done = call(tmp_path / "a.yml", "--yes")
    assert "warning: Slurm is installed, but neither scontrol nor sacct answers" in done.output
    assert list(loaded(tmp_path / "a.yml").collectors) == ["htcondor"]


def test_without_a_terminal_it_does_not_wait_for_answers(play: Play, tmp_path: Path) -> None:
    slurm_host(play)
    assert "use --yes, or give all answers" in str(call(tmp_path / "a.yml").exception)


def test_collectors_in_files_beside_it_are_not_joined_by_others(play: Play, tmp_path: Path) -> None:
    slurm_host(play)
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/site.yml").write_text("collectors: {files: {kind: files, folder: /srv/drop}}\n")
    assert "conf.d/site.yml:1 has collectors already" in str(call(tmp_path / "a.yml", "--yes").exception)


@pytest.mark.parametrize(
    ("environ", "kubeconfig"),
    [
        ({"HOME": "/home/me"}, "/home/me/.kube/config"),
        ({"HOME": "/home/me", "KUBECONFIG": "/nowhere:/srv/kubeconfig"}, "/srv/kubeconfig"),
        ({}, "/etc/kubernetes/admin.conf"),
        ({"HOME": "/home/me", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
    ],
)
def test_kubernetes_is_found_by_its_files_or_the_pod(
    play: Play, tmp_path: Path, environ: dict[str, str], kubeconfig: str | None
) -> None:
    play(["/home/me/.kube/config", "/srv/kubeconfig", "/etc/kubernetes/admin.conf"], environ)
    (tmp_path / "answers.yml").write_text("namespaces: atlas, cms\nprometheus: https://p.example.org\n")
    done = call(tmp_path / "a.yml", "--yes", "--answers", str(tmp_path / "answers.yml"))
    assert done.exit_code == 0, done.output
    config = loaded(tmp_path / "a.yml").collectors["kubernetes"]
    assert isinstance(config, KubernetesConfig)
    assert config.kubeconfig == (None if kubeconfig is None else Path(kubeconfig))
    assert config.scopes == ("atlas", "cms")
    assert config.prometheus is not None


def test_jobs_of_a_gateway_are_not_counted_beside_their_batch_system(play: Play, tmp_path: Path) -> None:
    play(scontrol=CONFIG.format(storage="slurmdbd"), sacct="slurm 22.05.8", condor_ce_history="ce#1.0#1")
    assert call(tmp_path / "a.yml", "--yes").exit_code == 0
    assert list(loaded(tmp_path / "a.yml").collectors) == ["slurm"]
    (tmp_path / "answers.yml").write_text("collectors: htcondor\n")
    assert call(tmp_path / "b.yml", "--yes", "--answers", str(tmp_path / "answers.yml")).exit_code == 0
    assert list(loaded(tmp_path / "b.yml").collectors) == ["htcondor"]


def test_programs_that_it_replaces_are_pointed_to(play: Play, tmp_path: Path) -> None:
    play(["/etc/auditor/auditor.yml", "/etc/auditor/slurm.yml", "/etc/waldur/agent.yaml"])
    (tmp_path / "answers.yml").write_text("auditor: http://auditor.example.org:8000\n")
    file = tmp_path / "a.yml"
    done = call(file, "--yes", "--answers", str(tmp_path / "answers.yml"))
    folder = tmp_path / "conf.d"
    for line in (
        f"auditord config import /etc/auditor/auditor.yml /etc/auditor/slurm.yml > {folder}/auditor.yml",
        f"auditord config import /etc/waldur/agent.yaml > {folder}/waldur.yml",
        f"auditord import auditor http://auditor.example.org:8000 --config {file}",
    ):
        assert line in done.output


def test_postgresql_that_is_not_prepared_is_offered_and_not_taken(play: Play, tmp_path: Path) -> None:
    play(pg_isready="/var/run/postgresql:5433 - accepting connections\n", id="root\n")
    file = tmp_path / "a.yml"
    assert call(file, "--yes").exit_code == 0
    url = "postgresql://auditord@/auditord?host=/var/run/postgresql&port=5433"
    assert f"# store:\n#   url: {url}" in file.read_text()
    assert "CREATE DATABASE auditord OWNER" in file.read_text()
    assert loaded(file).store.url.startswith("sqlite:")
    (tmp_path / "answers.yml").write_text(f"store: {url}\n")
    done = call(tmp_path / "b.yml", "--yes", "--answers", str(tmp_path / "answers.yml"))
    assert loaded(tmp_path / "b.yml").store.url == url
    assert "CREATE ROLE" in done.output
    assert "auditord database migrate" in done.output


@pytest.mark.parametrize("address", ["mysql://here/there", "records.db"])
def test_a_store_that_is_none_is_refused(play: Play, tmp_path: Path, address: str) -> None:
    play(pg_isready="/var/run/postgresql:5432 - accepting connections\n")
    (tmp_path / "answers.yml").write_text(f"store: {address}\n")
    done = call(tmp_path / "a.yml", "--yes", "--answers", str(tmp_path / "answers.yml"))
    assert "neither sqlite:///" in str(done.exception)


def test_a_program_that_is_missing_or_fails_is_not_there(tmp_path: Path) -> None:
    host = ThisHost()
    assert host.run(["/nowhere/sacct"]) is None
    assert host.run(["false"]) is None
    assert host.run(["echo", "hello"]) == "hello\n"
    (tmp_path / "b.cfg").touch()
    (tmp_path / "a.cfg").touch()
    (tmp_path / "c.cfg").mkdir()
    assert [each.name for each in host.find(f"{tmp_path}/nothing", f"{tmp_path}/*.cfg")] == ["a.cfg", "b.cfg"]


def test_the_folder_of_the_file_is_made(play: Play, tmp_path: Path) -> None:
    slurm_host(play)
    file = tmp_path / "etc/auditord/auditord.yml"
    done = call(file, "--yes")
    assert (done.exit_code, file.exists()) == (0, True)
    refused = str(call(Path("/proc/nowhere/a.yml"), "--yes").exception)
    assert "/proc/nowhere/a.yml cannot be written: " in refused
    assert "name a file with --config" in refused


def test_a_file_elsewhere_says_where_the_daemon_s_files_are(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a command of another user asks the same daemon."""
    monkeypatch.setenv("STATE_DIRECTORY", "/srv/state")
    play()
    assert call(tmp_path / "a.yml", "--yes").exit_code == 0
    assert loaded(tmp_path / "a.yml").state_dir == Path("/srv/state")
    assert call(tmp_path / "conf.d/a.yml", "--yes").exit_code == 0
    assert "state_dir:" not in (tmp_path / "conf.d/a.yml").read_text().split("\n", 2)[2]


def test_nothing_is_asked_where_nothing_can_be_written(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play()
    tried = list[Path]()

    def access(path: Path, mode: int) -> bool:  # root may write everywhere
        assert mode == os.W_OK
        tried.append(path)
        return False

    monkeypatch.setattr("auditord.cli.init.os.access", access)
    done = call(tmp_path / "new/deep/a.yml")
    assert f"{tmp_path / 'new/deep/a.yml'} cannot be written: Permission denied; run it as root" in str(done.exception)
    assert (tried, done.output) == ([tmp_path], "")


def test_users_get_pseudonyms_with_a_key_that_is_made_up_once(play: Play, tmp_path: Path) -> None:
    play()
    (tmp_path / "answers.yml").write_text("users: pseudonyms\n")
    file, key = tmp_path / "site/auditord.yml", tmp_path / "site/pseudonym-key"
    done = call(file, "--yes", "--answers", str(tmp_path / "answers.yml"))
    assert f"wrote {key}: keep it" in done.output
    assert len(key.read_text().strip()) == 64
    assert key.stat().st_mode & 0o777 == 0o600
    assert loaded(file).transforms.keys() == {"pseudonyms"}
    assert f"key: file:{key}" in file.read_text()
    file.unlink()
    key.write_text("the key of the years before")
    done = call(file, "--yes", "--answers", str(tmp_path / "answers.yml"))
    assert f"kept {key}, which already exists" in done.output
    assert key.read_text() == "the key of the years before"


@pytest.mark.parametrize(("folder", "mode"), [(0o750, 0o640), (0o700, 0o600), (0o755, 0o600)])
def test_the_files_are_for_the_readers_of_a_folder_that_is_closed_to_others(
    play: Play, tmp_path: Path, folder: int, mode: int
) -> None:
    """As /etc/auditord is in the packages, whose service reads the files by its group."""
    play()
    (tmp_path / "answers.yml").write_text("users: pseudonyms\n")
    file, group = tmp_path / "site/auditord.yml", max(os.getgroups() or [os.getgid()])
    file.parent.mkdir()
    os.chown(file.parent, -1, group)
    file.parent.chmod(folder)
    before = os.umask(0o077)
    try:
        call(file, "--yes", "--answers", str(tmp_path / "answers.yml"))
    finally:
        os.umask(before)
    found = [path.stat() for path in (file, file.with_name("pseudonym-key"))]
    assert [each.st_mode & 0o777 for each in found] == [mode, mode]
    if folder == 0o750:
        assert [each.st_gid for each in found] == [group, group]
