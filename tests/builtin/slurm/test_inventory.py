"""The reach of slurmdbd's memory, and whom it shows jobs to, from what sacctmgr prints."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from auditord.config.kinds import why_not_audited
from auditord.testing import FakeCollectorContext
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.epilog.config import SlurmEpilogConfig
from auditord_builtin.slurm.inventory import reach, source_reach
from auditord_builtin.slurm.kinds import SLURM, SLURM_EPILOG
from auditord_hookspecs import CommandFailed
from auditord_hookspecs.checks import Severity

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CAPTURED = """\
SlurmDBD configuration:
ArchiveDir             = /tmp
PurgeEventAfter        = 1 months
PurgeJobAfter          = {purge}
PurgeStepAfter         = NONE
"""
"""Lines of ``sacctmgr show configuration`` of Slurm 22.05."""


def context(printed: str, **options: Any) -> FakeCollectorContext:
    return FakeCollectorContext(moment=NOW, commands=lambda _: printed.encode(), **options)


def config(**options: Any) -> SlurmConfig:
    return SlurmConfig.model_validate(options)


@pytest.mark.parametrize(
    ("purge", "since"),
    [
        ("NONE", datetime(1970, 1, 1, tzinfo=UTC)),
        ("12 months", NOW - timedelta(days=336)),
        ("1 months*", NOW - timedelta(days=28)),
        ("30 days", NOW - timedelta(days=30)),
        ("48 hours", NOW - timedelta(hours=48)),
        ("(null)", None),
    ],
)
async def test_the_purge_of_jobs_is_the_horizon(purge: str, since: datetime | None) -> None:
    assert (await source_reach(config(), context(CAPTURED.format(purge=purge)))).remembers == since


async def test_sacctmgr_lies_beside_sacct_and_gets_none_of_its_options() -> None:
    asked = context(CAPTURED.format(purge="NONE"))
    await source_reach(config(sacct=["sudo", "/opt/slurm/bin/sacct", "--jobs=1"], through=["ssh", "head1"]), asked)
    assert asked.ran == [
        ("ssh", "head1", "sudo", "/opt/slurm/bin/sacctmgr", "--noheader", "--parsable2", "show", "configuration")
    ]


async def test_without_sacctmgr_nothing_is_known() -> None:
    def missing(_: object) -> bytes:
        raise CommandFailed("sacctmgr: no such program")

    assert (await source_reach(config(), FakeCollectorContext(commands=missing))).remembers is None
    assert (await source_reach(config(sacct="my-accounting"), FakeCollectorContext())).remembers is None


async def test_the_collector_s_beginning_is_its_first_run() -> None:
    checkpoint = {
        "earliest": "2026-01-05T00:00:00Z",
        "until": "2026-02-01T00:00:00Z",
        "rescanned": "2026-02-01T00:00:00Z",
    }
    known = context(CAPTURED.format(purge="NONE"), checkpoint=checkpoint)
    assert (await reach(config(), known)).collects == datetime(2026, 1, 5, tzinfo=UTC)
    assert (await reach(config(), context("", checkpoint=None))).collects == NOW
    chosen = config(earliest_datetime="2025-01-01T00:00:00Z")
    assert (await reach(chosen, context("", checkpoint=None))).collects == datetime(2025, 1, 1, tzinfo=UTC)


def test_notes_without_sacct_are_no_inventory() -> None:
    options = SlurmEpilogConfig.model_validate({"spool": "/notes"})
    assert why_not_audited(SLURM, config()) is why_not_audited(SLURM_EPILOG, options) is None
    without = SlurmEpilogConfig.model_validate({"spool": "/notes", "sacct": []})
    assert "sacct is []" in (why_not_audited(SLURM_EPILOG, without) or "")


@pytest.mark.parametrize(
    ("private", "severity"),
    [("none", Severity.OK), ("accounts,Jobs,usage", Severity.WARNING), ("accounts", Severity.OK)],
)
async def test_the_doctor_warns_where_jobs_may_be_hidden(private: str, severity: Severity) -> None:
    shown = context(f"PrivateData            = none\n\nSlurmDBD configuration:\nPrivateData            = {private}\n")
    assert SLURM.check is not None
    found = [each async for each in SLURM.check(config(), shown)]
    assert [each.severity for each in found if each.subject == "privacy"] == [severity]


@pytest.mark.parametrize(
    ("gathers", "severity"),
    [("jobacct_gather/none", Severity.WARNING), ("(null)", Severity.WARNING), ("jobacct_gather/linux", Severity.OK)],
)
async def test_the_doctor_warns_where_slurm_measures_nothing(gathers: str, severity: Severity) -> None:
    shown = context(f"JobAcctGatherFrequency  = task=1\nJobAcctGatherType       = {gathers}\n")
    assert SLURM.check is not None
    found = [each async for each in SLURM.check(config(sacct=["/opt/slurm/bin/sacct"]), shown)]
    assert [each.severity for each in found if each.subject == "measuring"] == [severity]
    assert ("/opt/slurm/bin/scontrol", "show", "config") in shown.ran
    unmeasured = context("JobAcctGatherType = none")
    assert "measuring" not in [each.subject async for each in SLURM.check(config(components="auditor"), unmeasured)]


_GPU_SETTINGS = "AccountingStorageTRES   = cpu,mem,energy,node,billing,fs/disk,vmem,pages{more}\nGresTypes = {types}\n"


@pytest.mark.parametrize(
    ("types", "more", "line"),
    [
        ("gpu", "", "AccountingStorageTRES=gres/gpu"),
        ("gpu,shard", ",license/matlab", "AccountingStorageTRES=license/matlab,gres/gpu"),
        ("gpu", ",gres/gpu", None),
        ("gpu", ",gres/gpu:a100", None),
        ("(null)", "", None),
    ],
)
async def test_the_doctor_warns_where_slurm_does_not_account_for_gpus(types: str, more: str, line: str | None) -> None:
    shown = context(_GPU_SETTINGS.format(types=types, more=more))
    assert SLURM.check is not None
    chosen = config(sacct=["/opt/slurm/bin/sacct"])
    found = [each async for each in SLURM.check(chosen, shown) if each.subject == "GPUs"]
    assert [(each.severity, each.remedy) for each in found] == (
        [(Severity.WARNING, f"set {line} in slurm.conf, and restart slurmctld")] if line else []
    )
    without = config(sacct=["/opt/slurm/bin/sacct"], components="auditor")
    assert "GPUs" not in [each.subject async for each in SLURM.check(without, shown)]


def test_rules_that_store_a_zero_or_round_a_fraction_away_are_remarked_on() -> None:
    needed = {"name": "TotalCPU", "key": "TotalCPU", "key_type": "Time"}
    site = [{"name": "A"}]
    assert SLURM.remarks is not None
    [remark] = SLURM.remarks(config(sites=site, components=[needed]))
    assert "set optional: true" in remark
    assert not [*SLURM.remarks(config(sites=site)), *SLURM.remarks(config(sites=site, components="auditor"))]
    billing = {"name": "Billing", "key": "AllocTRES", "sub_key": "billing", "optional": True}
    [remark] = SLURM.remarks(config(sites=site, components=[billing]))
    assert "component Billing: AllocTRES[billing] can have a fraction" in remark
