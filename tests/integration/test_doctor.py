"""``auditord doctor`` with one broken thing each, and where all is well."""

import json
import logging
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import anyio
import jwt
import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.cli.doctor import Examined, examine
from auditord.config.loading import load
from auditord.errors import PERMISSION_REMEDY
from auditord.hooks import HookEntry, HookModule, load_hooks
from auditord.spool import Spool, own
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.testing import make_record
from auditord.testing.daemon import running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import (
    Batch,
    CollectorContext,
    CollectorKind,
    Context,
    Quarantined,
    Record,
    RunConfig,
    RunReport,
    hookimpl,
)
from auditord_hookspecs.checks import Finding, Severity
from tests.host_certificates import Authority

DAY: Final = timedelta(days=1)
NOW: Final = datetime.now(UTC)


def always(answer: object) -> Callable[..., object]:
    return lambda *_: answer


class Doctor:
    """A configuration in a folder, and what the command says of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.sections: dict[str, Any] = {}

    def file(self) -> Path:
        file = self.folder / "auditord.yml"
        file.write_text(json.dumps({"state_dir": str(self.state), **self.sections}))
        return file

    def run(self, *words: str) -> tuple[int, list[dict[str, str]]]:
        """Exit code and findings."""
        command = (*(words or ("doctor",)), "--output", "json", "--config", str(self.file()))
        ended = CliRunner().invoke(auditord, command)
        assert ended.exit_code in {0, 1, 2}, ended.output
        return ended.exit_code, json.loads(ended.stdout)

    def about(self, where: str, subject: str) -> dict[str, str]:
        """The one finding about something."""
        _, findings = self.run()
        [found] = [each for each in findings if each["where"] == where and each["subject"] == subject]
        return found


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def sacct(folder: Path, columns: str, query: str = "exit 0") -> str:
    """A program that answers as sacct does; fails to list its columns without any."""
    listed = f"echo {columns}" if columns else "exit 1"
    return script(
        folder / "sacct",
        f'case "$*" in --version) echo slurm 25.05.1;; --helpformat) {listed};; *) {query};; esac',
    )


COLUMNS: Final = (
    "JobID JobIDRaw Cluster State Submit Start End User UID Group GID Partition Account NodeList "
    "NCPUS NNodes AllocTRES TotalCPU MaxRSS ReqMem Elapsed"
)


def test_before_the_first_start_all_but_the_daemon_is_well(doctor: Doctor) -> None:
    code, findings = doctor.run()
    assert code == 1
    assert [each["subject"] for each in findings if each["severity"] != "ok"] == ["process"]
    assert {each["where"] for each in findings} == {"state_dir", "disk", "daemon", "store"}


def test_beside_a_daemon_all_is_well_and_nothing_is_changed(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {}) as daemon:
        doctor = Doctor(tmp_path / "doctor")
        doctor.folder.mkdir()
        doctor.state = daemon.state_dir
        before = {path: path.stat().st_mtime_ns for path in daemon.state_dir.rglob("*.db")}
        ended = CliRunner().invoke(auditord, ("doctor", "--config", str(doctor.file())))
        assert (ended.exit_code, ended.stdout[:27]) == (0, "OK: 0 failures, 0 warnings,"), ended.stdout
        assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_folder_that_others_may_write_to(doctor: Doctor) -> None:
    doctor.state.mkdir()
    doctor.state.chmod(0o777)
    code, findings = doctor.run()
    assert code == 2
    [found] = [each for each in findings if each["severity"] == "failure"]
    assert (found["where"], found["text"]) == ("state_dir", "users other than root may write to it (mode 0777)")
    assert found["remedy"].startswith(f"chmod go-w {doctor.state}")


def test_files_that_everybody_can_read(doctor: Doctor) -> None:
    doctor.state.mkdir(mode=0o755)
    file = doctor.state / "lake/catalog.db"
    file.parent.mkdir()
    file.touch(0o644)
    found = doctor.about("state_dir", "privacy")
    assert (found["severity"], str(file) in found["text"]) == ("warning", True)
    assert found["remedy"] == f"chmod -R o-rwx {doctor.state}"
    doctor.state.chmod(0o750)
    assert "privacy" not in {each["subject"] for each in doctor.run()[1]}, "nobody comes as far as the file"


def test_files_of_another_user(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor.state.mkdir(mode=0o750)
    foreign = doctor.state / "spool.db-wal"
    foreign.touch()
    as_seen = os.stat_result((*foreign.stat()[:4], 4711, *foreign.stat()[5:]))
    monkeypatch.setattr(Path, "lstat", always(as_seen))
    found = doctor.about("state_dir", "owners")
    assert (found["severity"], "spool.db-wal" in found["text"]) == ("failure", True)
    assert "chown -R" in found["remedy"]


@pytest.mark.parametrize(
    ("left", "severity"), [(100 * DAY, "ok"), (5 * DAY, "warning"), (-DAY, "failure")], ids=["good", "soon", "over"]
)
def test_the_end_of_a_certificate(doctor: Doctor, left: timedelta, severity: str) -> None:
    files = Authority(doctor.folder).issue("host", valid=(NOW - 200 * DAY, NOW + left))
    tls = {"certificate": str(files.certificate), "key": str(files.key)}
    doctor.sections = {"api": {"listen": [{"address": "127.0.0.1:0", "tls": tls}]}}
    found = doctor.about("api.listen", str(files.certificate))
    assert (found["severity"], f"{NOW + left:%Y-%m-%d}" in found["text"]) == (severity, True)
    assert (found["remedy"] == "") == (severity == "ok")


@pytest.mark.parametrize("where", ["senders.far", "store"])
@pytest.mark.parametrize(("owner", "severity"), [("host", "ok"), ("other", "failure")])
def test_a_key_of_another_certificate(doctor: Doctor, where: str, owner: str, severity: str) -> None:
    authority = Authority(doctor.folder)
    files, others = authority.issue("host"), authority.issue("other")
    key = str({"host": files, "other": others}[owner].key)
    if where == "store":
        url = "postgresql://nobody@127.0.0.1:1/nothing"
        doctor.sections = {"store": {"url": url, "sslcert": str(files.certificate), "sslkey": key}}
    else:
        tls = {"certificate": str(files.certificate), "key": key}
        doctor.sections = {"senders": {"far": {"kind": "remote", "url": "https://far.example.org", "tls": tls}}}
    assert doctor.about(where, "key")["severity"] == severity


def test_an_address_that_this_host_does_not_have(doctor: Doctor) -> None:
    doctor.sections = {"api": {"listen": ["203.0.113.1:8000"], "allow_insecure": True}}
    found = doctor.about("api.listen", "203.0.113.1:8000")
    assert (found["severity"], "this host has no such address" in found["text"]) == ("failure", True)


def test_the_names_that_clients_are_refused_for(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    aliases = ["auditor.example.org", "localhost.localdomain"]
    monkeypatch.setattr("socket.gethostbyname_ex", always(("node1.example.org", aliases, ())))
    api = {"listen": ["0.0.0.0:8000"], "allow_insecure": True, "hosts": ["node1.example.org"]}
    doctor.sections = {"api": api}
    found = doctor.about("api.hosts", "auditor.example.org")
    assert (found["severity"], "add auditor.example.org to api.hosts" in found["remedy"]) == ("warning", True)
    api["hosts"] = ["*"]
    assert not [each for each in doctor.run()[1] if each["where"] == "api.hosts"]


def test_a_running_daemon_says_which_names_it_has_refused(doctor: Doctor) -> None:
    with running_daemon(doctor.folder, {}) as daemon:
        doctor.state = daemon.state_dir
        asked = HTTPConnection(urlsplit(daemon.url).netloc)
        asked.request("GET", "/records", headers={"Host": "auditor.example.org"})
        assert asked.getresponse().status == 421
        asked.close()
        found = doctor.about("api.hosts", "auditor.example.org")
    assert "a client that read under this name" in found["text"]


def test_a_certificate_that_is_not_there_in_any_section(doctor: Doctor) -> None:
    tls = {"ca": str(doctor.folder / "absent.pem")}
    doctor.sections = {"senders": {"far": {"kind": "remote", "url": "https://far.example.org", "tls": tls}}}
    found = doctor.about("senders.far", str(doctor.folder / "absent.pem"))
    assert (found["severity"], found["text"]) == ("failure", "No such file or directory")


def test_sacct_that_is_well(doctor: Doctor) -> None:
    doctor.sections = {"collectors": {"slurm": {"kind": "slurm", "sacct": sacct(doctor.folder, COLUMNS)}}}
    _, findings = doctor.run()
    found = {each["subject"]: each["text"] for each in findings if each["where"] == "collectors.slurm"}
    assert found[str(doctor.folder / "sacct")] == "slurm 25.05.1"
    assert found["accounting"] == "sacct answers a query of this collector"


def test_sacct_that_is_missing(doctor: Doctor) -> None:
    doctor.sections = {"collectors": {"slurm": {"kind": "slurm", "sacct": "/nowhere/sacct"}}}
    found = doctor.about("collectors.slurm", "/nowhere/sacct")
    assert (found["severity"], found["remedy"][:23]) == ("failure", "install Slurm's client ")


def test_a_column_that_sacct_does_not_know(doctor: Doctor) -> None:
    meta = [{"name": "what", "key": "Extra", "key_type": "String"}]
    program = sacct(doctor.folder, COLUMNS)
    doctor.sections = {"collectors": {"slurm": {"kind": "slurm", "sacct": program, "meta": meta}}}
    found = doctor.about("collectors.slurm", "columns")
    assert (found["severity"], "no column Extra" in found["text"]) == ("failure", True)


def test_sacct_that_cannot_list_its_columns_is_installed(doctor: Doctor) -> None:
    doctor.sections = {"collectors": {"slurm": {"kind": "slurm", "sacct": sacct(doctor.folder, "")}}}
    assert doctor.about("collectors.slurm", "columns")["remedy"] == "is slurmdbd running, and can this user query it?"


def test_an_accounting_database_that_does_not_answer(doctor: Doctor) -> None:
    complaint = "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 0"
    program = sacct(doctor.folder, COLUMNS, complaint)
    doctor.sections = {"collectors": {"slurm": {"kind": "slurm", "sacct": program}}}
    found = doctor.about("collectors.slurm", "accounting")
    assert (found["severity"], "Connection refused" in found["text"]) == ("failure", True)


def test_extras_that_are_missing(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord_hookspecs.checks.find_spec", always(None))
    doctor.sections = {"collectors": {"pods": {"kind": "kubernetes", "record_prefix": "k"}}}
    found = doctor.about("collectors.pods", "kubernetes_asyncio")
    assert (found["severity"], found["remedy"]) == ("failure", "pip install 'auditord[kubernetes]'")


def test_condor_history_and_folders_that_are_missing(doctor: Doctor) -> None:
    doctor.sections = {
        "collectors": {
            "htcondor": {"kind": "htcondor", "condor_history": "/nowhere/condor_history"},
            "files": {"kind": "files", "folder": str(doctor.folder / "absent")},
            "ce": {"kind": "htcondor", "record_prefix": "ce", "history_paths": [str(doctor.folder / "history")]},
        }
    }
    assert doctor.about("collectors.htcondor", "/nowhere/condor_history")["severity"] == "failure"
    assert doctor.about("collectors.files", str(doctor.folder / "absent"))["severity"] == "failure"
    assert doctor.about("collectors.ce", str(doctor.folder / "history"))["severity"] == "failure"


class Usage(NamedTuple):
    """As ``shutil.disk_usage`` answers."""

    total: int
    used: int
    free: int


@pytest.mark.parametrize(
    ("free", "severity"), [(500 << 30, "ok"), (20 << 30, "warning"), (1 << 20, "failure")], ids=["much", "less", "none"]
)
def test_a_disk(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, free: int, severity: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", always(Usage(1 << 40, (1 << 40) - free, free)))
    found = doctor.about("disk", str(doctor.folder))
    assert (found["severity"], "GiB are free" in found["text"]) == (severity, True)


def store(doctor: Doctor, *records: Record) -> None:
    async def work() -> None:
        async with open_store(f"sqlite://{doctor.state / 'records.db'}", counted_keys=("site_id",)) as opened:
            await opened.add_all(records, Provenance(NOW), Duplicates.SAME_RUN, atomic=False)

    doctor.state.mkdir(mode=0o750, exist_ok=True)
    anyio.run(work)


def test_a_disk_that_records_will_fill(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand records in four weeks, in a file of some hundred kilobytes: a few kilobytes a day."""
    store(doctor, *(make_record(f"r{n}", start=NOW - 2 * DAY, site_id="A") for n in range(1_000)))
    size = (doctor.state / "records.db").stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", always(Usage(1 << 22, 0, size)))  # as much again is free
    found = doctor.about("disk", str(doctor.state))
    assert (found["severity"], "so the disk will be full in 28 days" in found["text"]) == ("warning", True), found
    monkeypatch.setattr(shutil, "disk_usage", always(Usage(1 << 42, 0, 1 << 42)))
    assert doctor.about("disk", str(doctor.state))["text"].endswith("so the disk will be full in more than 10 years")


def test_a_site_that_is_silent_for_longer_than_usual(doctor: Doctor) -> None:
    daily = [make_record(f"a{n}", start=NOW - n * DAY, site_id="A") for n in range(1, 20)]
    silent = [make_record(f"b{n}", start=NOW - n * DAY, site_id="B") for n in range(5, 20)]
    monthly = [make_record(f"c{n}", start=NOW - n * 20 * DAY, site_id="C") for n in range(1, 4)]
    store(doctor, *daily, *silent, *monthly)
    _, findings = doctor.run()
    found = {each["subject"]: each["severity"] for each in findings if each["subject"].startswith("site ")}
    assert found == {"site A": "ok", "site B": "warning", "site C": "ok"}
    (text,) = [each["text"] for each in findings if each["subject"] == "site B"]
    assert text.endswith("the last ended 5.0 days ago, more than 3 times its usual interval of 1.0 days")


def test_components_that_no_recent_record_of_a_site_has(doctor: Doctor) -> None:
    posted = [make_record(f"p{n}", start=NOW - n * DAY, site_id="P", components={"UserCPU": 1}) for n in range(2, 4)]
    pods = [make_record("pod", start=NOW - DAY, site_id="K", components={"CoreSeconds": 7, "TotalCPU": 0})]
    old = [make_record("old", start=NOW - 40 * DAY, site_id="O")]
    store(doctor, *posted, *pods, *old)
    _, findings = doctor.run()
    found = [(each["severity"], each["text"], each["remedy"]) for each in findings if each["subject"] == "components"]
    assert found == [
        (
            "warning",
            "none of the 2 records of site P in the last 30 days has TotalCPU",
            "have its collector or sender record it: reports (cpu-hours, cpu-efficiency, idle-core-hours) need it",
        )
    ]


def test_records_of_the_future(doctor: Doctor) -> None:
    store(doctor, make_record(start=NOW + DAY))
    found = doctor.about("store", "clocks")
    assert (found["severity"], found["text"]) == ("warning", "1 record stopped in the future")


def enqueue(doctor: Doctor, sender: str, age: timedelta) -> None:
    """Queue a record for a sender, and quarantine a job."""

    batch = Batch([make_record()], [Quarantined("1", {}, "no start")])
    in_spool(doctor, age, lambda spool: spool.enqueue("jobs", batch, [sender]))


def test_a_queue_whose_sender_is_not_configured_any_more(doctor: Doctor) -> None:
    enqueue(doctor, "central", timedelta(0))
    found = doctor.about("daemon", "queue")
    assert (found["severity"], found["text"].partition(",")[0]) == ("warning", "1 entry waits for central")
    assert found["remedy"].startswith("no sender of this name is enabled")


def in_spool(doctor: Doctor, age: timedelta, work: Callable[[Spool], Awaitable[object]]) -> None:
    """Use the spool as a daemon did some time ago."""

    async def run() -> None:
        async with Spool.opened(doctor.state, lambda: NOW - age) as spool:
            await work(spool)

    with own(doctor.state):
        anyio.run(run)


def enable(spool: Spool) -> Awaitable[object]:
    return spool.note_enabled({"old_jobs": "open_records"})


@pytest.mark.parametrize(
    ("when", "age", "severity"),
    [
        ({"interval": "1d"}, timedelta(hours=20), "ok"),
        ({"interval": "1d"}, timedelta(hours=25), "warning"),
        ({"schedule": f"0 0 {(NOW + 3 * DAY).day} * *"}, 2 * DAY, "ok"),
        ({"interval": "1d", "run_at_start": True}, timedelta(hours=20), "warning"),
    ],
)
def test_a_plugin_that_waits_for_its_first_tick_is_well(
    doctor: Doctor, when: Mapping[str, Any], age: timedelta, severity: str
) -> None:
    doctor.sections = {"plugins": {"old_jobs": {"kind": "open_records", **when}}}
    in_spool(doctor, age, enable)
    found = doctor.about("daemon", "old_jobs")
    assert found["severity"] == severity
    assert ("its first run begins at" in found["text"]) == (severity == "ok")


def test_a_plugin_that_was_enabled_again_is_not_overdue(doctor: Doctor) -> None:
    doctor.sections = {"plugins": {"old_jobs": {"kind": "open_records", "interval": "1d"}}}
    report = RunReport("old_jobs", "open_records", NOW - 50 * DAY, timedelta(seconds=1))
    in_spool(doctor, 50 * DAY, lambda spool: spool.record_run(report))
    assert doctor.about("daemon", "old_jobs")["severity"] == "warning"
    in_spool(doctor, timedelta(hours=1), enable)
    assert doctor.about("daemon", "old_jobs")["severity"] == "ok"


def test_what_waits_in_quarantine_and_in_a_queue(doctor: Doctor) -> None:
    enqueue(doctor, "local", 2 * DAY)
    assert doctor.about("daemon", "quarantine")["remedy"] == "auditord quarantine list"
    found = doctor.about("daemon", "queue")
    assert (found["severity"], found["text"]) == ("warning", "1 entry waits for local, the oldest for 2 d")


def test_a_database_that_does_not_answer(doctor: Doctor) -> None:
    doctor.sections = {"store": {"url": "postgresql://nobody@127.0.0.1:1/nothing"}}
    code, findings = doctor.run()
    [found] = [each for each in findings if each["where"] == "store"]
    assert (code, found["severity"], found["subject"]) == (2, "failure", "database")


def test_a_database_without_tables(doctor: Doctor, empty_postgres_url: str) -> None:
    doctor.sections = {"store": {"url": empty_postgres_url}}
    found = doctor.about("store", "schema")
    assert (found["severity"], found["remedy"]) == ("failure", "auditord database migrate")


def test_a_database_that_is_well_and_one_with_another_clock(doctor: Doctor, postgres_url: str) -> None:
    doctor.sections = {"store": {"url": postgres_url}}
    assert doctor.about("store", "clock")["severity"] == "ok"
    found = in_process(doctor, lambda: datetime.now(UTC) - timedelta(hours=1))
    [clock] = [each for each in found if each.subject == "clock"]
    assert (clock.severity, "+3600" in clock.text or "+3599" in clock.text) == ("failure", True)


def test_configuration_check_can_be_deep(doctor: Doctor) -> None:
    doctor.sections = {"collectors": {"slurm": {"kind": "slurm", "sacct": "/nowhere/sacct"}}}
    ended = CliRunner().invoke(auditord, ("config", "check", "--deep", "--config", str(doctor.file())))
    assert ended.exit_code == 2
    assert "the configuration is fine" in ended.stdout
    assert "/nowhere/sacct" in ended.stdout


def in_process(doctor: Doctor, now: Callable[[], datetime], *modules: ModuleType) -> list[Examined]:
    hooks = load_hooks([], [entry(each) for each in modules])
    return anyio.run(examine, load([doctor.file()], hooks.kinds, {}, hooks.resolve_secret), hooks, now)


def entry(module: ModuleType) -> HookEntry:
    return HookEntry(HookModule(module.__name__, module.__name__, "tests", "1"), lambda: module)


def third_party(check: Callable[[RunConfig, Context], AsyncGenerator[Finding, None]]) -> ModuleType:
    async def collect(_: RunConfig, __: CollectorContext) -> AsyncGenerator[Batch, None]:
        yield Batch()

    @hookimpl
    def auditord_collectors() -> list[CollectorKind[Any]]:
        return [CollectorKind(name="theirs", config=RunConfig, collect=collect, check=check)]

    module = ModuleType("theirs")
    setattr(module, "auditord_collectors", auditord_collectors)  # noqa: B010 modules have no such attribute
    return module


def test_a_lake_that_is_away_has_nothing_of_this_daemon_or_falls_behind(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor.sections = {"lake": {"enabled": True, "name": "here"}}
    assert doctor.about("lake", "table")["text"] == "nothing has been synced yet"
    anyio.run(sync_one, doctor)
    well = doctor.about("lake", "table")
    assert (well["severity"], well["text"].partition(" at ")[0]) == ("ok", "1 record of 1 daemon")
    assert "0 min ago, 0 changes not synced yet" in doctor.about("lake", "backlog")["text"]
    monkeypatch.setattr("auditord.lake.feature._MANY", 0)
    monkeypatch.setattr("auditord.lake.feature._LATE", -DAY)
    assert doctor.about("lake", "backlog")["severity"] == "ok", "nothing waits"
    anyio.run(add_one, doctor, "job-2")
    late = doctor.about("lake", "backlog")
    assert (late["severity"], "1 change not synced yet" in late["text"]) == ("warning", True)
    doctor.sections = {"lake": {"enabled": True, "name": "there"}}
    other = doctor.about("lake", "table")
    assert (other["severity"], "under the name here" in other["text"]) == ("failure", True)
    doctor.sections = {"lake": {"enabled": True, "name": "here"}}
    (doctor.state / "lake/catalog.db").rename(doctor.state / "lake/aside.db")
    away = doctor.about("lake", "table")
    assert (away["severity"], "correct lake.catalog" in away["remedy"]) == ("failure", True)


def test_rows_in_the_lake_that_their_daemon_did_not_bring_are_a_failure_at_a_hub_as_well(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor.sections = {"lake": {"enabled": True, "name": "here"}}
    anyio.run(sync_one, doctor)
    for section in ({"enabled": True, "name": "here"}, {"scope": "all", "warehouse": str(doctor.state / "lake")}):
        doctor.sections = {"lake": section}
        assert {each["severity"] for each in doctor.run()[1] if each["where"] == "lake"} == {"ok"}
        with monkeypatch.context() as patch:
            patch.setattr("auditord.lake.table.LakeTable.count_unaccounted", always({"kit": 3}))
            found = doctor.about("lake", "origin")
        assert (found["severity"], found["text"][:27]) == ("failure", "3 rows under the name kit d")


async def add_one(doctor: Doctor, record_id: str) -> None:
    async with open_store(f"sqlite://{doctor.state / 'records.db'}", counted_keys=()) as store:
        await store.add(make_record(record_id, start=NOW - DAY), Provenance(NOW), Duplicates.SAME_RUN)


async def sync_one(doctor: Doctor) -> None:
    """Sync a record of the store in the state folder to the lake that is configured."""
    from auditord.lake.opening import ConfiguredLake  # noqa: PLC0415
    from auditord.lake.syncing import sync  # noqa: PLC0415 a second, for one test

    doctor.state.mkdir(exist_ok=True)
    lake = ConfiguredLake(load([doctor.file()], load_hooks([], []).kinds, {}, lambda _: None))
    lake.make_folder()
    await add_one(doctor, "job-1")
    async with open_store(f"sqlite://{doctor.state / 'records.db'}", counted_keys=()) as store:
        log = logging.LoggerAdapter(logging.getLogger(__name__))
        assert (await sync(store, lake.table, "here", log)).records == 1
    lake.close()


@pytest.mark.parametrize(
    ("issued", "ends", "severity"),
    [(None, 20, "ok"), (-300, 13, "warning"), (None, -1, "failure"), (-1, 1, "ok"), (-2, -1, "failure")],
)
def test_the_end_of_a_token_that_a_sender_sends(doctor: Doctor, issued: int | None, ends: int, severity: str) -> None:
    claims = {"sub": "here", "exp": int((NOW + ends * DAY).timestamp())}
    claims |= {} if issued is None else {"iat": int((NOW + issued * DAY).timestamp())}
    token = jwt.encode(claims, "a key that nobody here looks at, ever")
    doctor.sections = {"senders": {"hub": {"kind": "remote", "url": "http://127.0.0.1:1", "token": token}}}
    found = doctor.about("senders.hub", "token")
    assert (found["severity"], bool(found["remedy"])) == (severity, severity != "ok")


def test_a_token_that_does_not_say_its_end_is_passed_over(doctor: Doctor) -> None:
    for token in ("secret", "a.b.c", "..", jwt.encode({"sub": "x"}, "a key that nobody here looks at, ever")):
        doctor.sections = {"senders": {"hub": {"kind": "remote", "url": "http://127.0.0.1:1", "token": token}}}
        _, findings = doctor.run()
        assert [each for each in findings if each["subject"] == "token"] == []


@pytest.mark.parametrize(("network", "severity"), [("0.0.0.0/0", "warning"), ("::/0", "warning"), ("10.0.0.0/8", "ok")])
def test_a_network_that_lets_everybody_in(doctor: Doctor, network: str, severity: str) -> None:
    rules = [{"network": network, "roles": ["reader"]}]
    doctor.sections = {"authenticators": {"hosts": {"kind": "networks", "rules": rules}}}
    found = doctor.about("authenticators.hosts", network)
    assert (found["severity"], bool(found["remedy"])) == (severity, severity == "warning")


@pytest.mark.parametrize(
    ("ends", "severity"),
    [((None,), "ok"), ((20,), "warning"), ((22,), "ok"), ((-1,), "warning"), ((-1, 3, 90), "ok"), ((3, None), "ok")],
)
def test_the_end_of_the_last_token_of_an_owner(doctor: Doctor, ends: Sequence[int | None], severity: str) -> None:
    doctor.sections = {"authenticators": {"programs": {"kind": "tokens"}}}
    doctor.state.mkdir()
    made = [new_token("grafana", ["reader"], NOW, None if days is None else NOW + days * DAY)[0] for days in ends]
    TokenFile(doctor.state).change(lambda _: made)
    found = doctor.about("authenticators.programs", "token of grafana")
    assert (found["severity"], bool(found["remedy"])) == (severity, severity == "warning")


def test_no_token_at_all(doctor: Doctor) -> None:
    doctor.sections = {"authenticators": {"programs": {"kind": "tokens"}}}
    found = doctor.about("authenticators.programs", "tokens")
    assert (found["severity"], found["text"]) == ("warning", "no token exists: every request with a token is refused")


@pytest.mark.parametrize(
    ("fault", "said", "remedy"),
    [
        (ZeroDivisionError("ink"), "ZeroDivisionError: ink", "report this to the authors of the kind"),
        (PermissionError(13, "no", "/var/ink"), "/var/ink: permission denied", PERMISSION_REMEDY),
    ],
)
def test_a_third_party_s_check_is_asked_and_its_fault_hides_no_other(
    doctor: Doctor, fault: Exception, said: str, remedy: str
) -> None:
    async def check(_: RunConfig, context: Context) -> AsyncGenerator[Finding, None]:
        yield Finding(Severity.OK, "printer", f"{context.instance} has paper")
        raise fault

    doctor.sections = {"collectors": {"office": {"kind": "theirs"}}}
    found = in_process(doctor, lambda: NOW, third_party(check))
    theirs = [(each.severity, each.text, each.remedy) for each in found if each.where == "collectors.office"]
    assert theirs == [("ok", "office has paper", ""), ("failure", said, remedy)]
    assert {each.where for each in found} >= {"state_dir", "disk", "daemon", "store"}


def test_the_text_names_what_is_wrong_first(doctor: Doctor) -> None:
    doctor.sections = {"collectors": {"slurm": {"kind": "slurm", "sacct": "/nowhere/sacct"}}}
    ended = CliRunner().invoke(auditord, ("doctor", "--config", str(doctor.file())))
    lines: Mapping[int, str] = dict(enumerate(ended.stdout.splitlines()))
    assert lines[0].startswith("failure")
    assert ended.stdout.splitlines()[-1].startswith("CRITICAL: 1 failure,")


@pytest.mark.parametrize("command", [("doctor",), ("config", "check", "--deep")])
def test_a_configuration_that_cannot_be_used_is_a_failure(doctor: Doctor, command: Sequence[str]) -> None:
    doctor.sections = {"api": {"listne": []}}
    ended = CliRunner().invoke(auditord, (*command, "--config", str(doctor.file())))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("auditord: the configuration cannot be used")


def test_changes_that_wait_for_a_removed_sender_are_named_and_can_be_discarded(doctor: Doctor) -> None:
    url = f"sqlite://{doctor.state}/records.db"

    async def add() -> None:
        async with open_store(url, counted_keys=(), outbox=True) as store:
            await store.add(make_record("a"), Provenance(NOW - DAY, None, "client"), Duplicates.SAME_RUN)
            await store.rollups.fold()

    async def waiting() -> int:
        async with open_store(url, counted_keys=()) as store:
            return len((await store.outbox(10)).entries)

    doctor.state.mkdir()
    anyio.run(add)
    found = doctor.about("store", "consumer senders")
    assert found["severity"] == "warning"
    assert "wait for a sender" in found["text"]
    command = ["database", "end-forwarding", "--yes", "--config"]
    assert command[1] in found["remedy"]
    sender = {"kind": "remote", "url": "http://127.0.0.1:9/", "from": "api"}
    doctor.sections["senders"] = {"far": sender}
    refused = CliRunner().invoke(auditord, [*command, str(doctor.file())])
    assert (refused.exit_code, "far forwards changes" in refused.output) == (2, True)
    assert anyio.run(waiting) == 1
    doctor.sections["senders"] = {"far": {**sender, "enabled": False}}
    assert "no longer kept" in CliRunner().invoke(auditord, [*command, str(doctor.file())]).output
    assert anyio.run(waiting) == 0
    assert "consumer senders" not in {each["subject"] for each in doctor.run()[1]}
