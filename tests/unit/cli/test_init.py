"""``auditord init`` on hosts with and without Slurm; the programs are played, the configuration is the real one."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord, init
from auditord.config.loading import load_with_sources
from auditord.config.model import Configuration
from auditord.hooks import load_hooks
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.slurm.config import SlurmConfig

CONFIG = "ClusterName             = hpc\nAccountingStorageType   = accounting_storage/{storage}\n"
ANSWERS = "site: KIT\nsince: 2026-10-01\nscore: 'genoa=12.4, 9.8'\nmemory_peaks: true\n"

Play = Callable[..., None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play a host: the output of its programs by their names."""

    def played(**programs: str) -> None:
        def run(argv: Sequence[str]) -> str | None:
            return programs.get(argv[0])

        monkeypatch.setattr(init, "run_program", run)

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
    assert "# Jobs that ended before this are left alone." in file.read_text()


def test_with_yes_nothing_is_asked_and_the_defaults_are_cheap(play: Play, tmp_path: Path) -> None:
    slurm_host(play)
    assert call(tmp_path / "a.yml", "--yes").exit_code == 0
    config = slurm_of(tmp_path / "a.yml")
    assert [each.name for each in config.components] == ["Cores", "Memory", "TotalCPU"]
    assert config.components[0].scores == ()


def test_slurm_without_a_database_is_noted_at_the_ends_of_jobs(play: Play, tmp_path: Path) -> None:
    play(scontrol=CONFIG.format(storage="none"), sacct="slurm 22.05.8")
    done = call(tmp_path / "a.yml", "--yes")
    assert "EpilogSlurmctld=auditord-epilog" in done.output
    assert list(loaded(tmp_path / "a.yml").collectors) == ["slurm_epilog"]


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


def test_a_file_that_is_there_is_never_changed(play: Play, tmp_path: Path) -> None:
    slurm_host(play)
    (tmp_path / "a.yml").write_text("mine: 1\n")
    done = call(tmp_path / "a.yml", "--yes")
    assert done.exit_code == 1
    assert "is there already" in str(done.exception)
    assert (tmp_path / "a.yml").read_text() == "mine: 1\n"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ("score: fast\n", "score: 'fast' is no number"),
        ("memory_peaks: perhaps\n", "'perhaps' is neither yes nor no"),
        ("since: yesterday\n", "earliest_datetime"),
        ("sites: KIT\n", "nobody asks 'sites' here; answers are memory_peaks, score, since, site"),
    ],
)
def test_an_answer_that_makes_no_sense_writes_nothing(play: Play, tmp_path: Path, answers: str, said: str) -> None:
    slurm_host(play)
    (tmp_path / "answers.yml").write_text(answers)
    done = call(tmp_path / "a.yml", "--yes", "--answers", str(tmp_path / "answers.yml"))
    assert said in str(done.exception)
    assert not (tmp_path / "a.yml").exists()


def test_without_a_terminal_it_does_not_wait_for_answers(play: Play, tmp_path: Path) -> None:
    slurm_host(play)
    assert "say --yes, or give all answers" in str(call(tmp_path / "a.yml").exception)


def test_a_program_that_is_missing_or_fails_is_not_there() -> None:
    assert init.run_program(["/nowhere/sacct"]) is None
    assert init.run_program(["false"]) is None
    assert init.run_program(["echo", "hello"]) == "hello\n"
