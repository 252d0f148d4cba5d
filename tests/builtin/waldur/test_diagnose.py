"""``auditord waldur diagnose``: one line for each thing that stands between records and right figures."""

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from auditord.testing import FakeCommandContext, FakePluginContext, make_record
from auditord_builtin.waldur.commands import diagnose_command
from auditord_hookspecs import CommandFailed
from tests.waldur_server import STAFF_TOKEN, TOKEN, FakeWaldur, Fault, fake_waldur
from tests.waldur_settings import COMPONENTS, waldur_config

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
YESTERDAY = NOW - timedelta(hours=20)
REACH = "reach back to 2026-03-14T17:00+00:00"


@dataclass
class Site:
    """One installation."""

    waldur: FakeWaldur
    context: FakePluginContext
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def diagnose(self, *arguments: str) -> Result:
        access = {"waldur_api_url": self.waldur.url, "waldur_api_token": TOKEN, "account_meta": "account"}
        config = waldur_config(**{**access, **self.options})
        return CliRunner().invoke(
            diagnose_command, arguments, obj=FakeCommandContext({"mine": ("waldur", config)}, self.context)
        )

    def lines(self, *arguments: str) -> list[str]:
        return self.diagnose(*arguments).output.splitlines()


@pytest.fixture
def site() -> Generator[Site]:
    job = make_record(
        "job-1", start=YESTERDAY, components={"Memory": 4096}, account="acct1", user_id="Alice", site_id="here"
    )
    with fake_waldur(now=NOW) as waldur:
        yield Site(waldur, FakePluginContext(moment=NOW, stored=[job]))


def test_where_all_is_well(site: Site) -> None:
    result = site.diagnose()
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        f"note  tls         {site.waldur.url}/api/ is not https: the token can be read in transit",
        f"ok    url         {site.waldur.url}/api/ answers",
        "ok    token       of service (Service Account)",
        "ok    server      Waldur 7.5.0, accepts many users in one request",
        "ok    clock       the server's agrees with ours",
        "ok    role        OFFERING.MANAGER; past months need a staff token, see load-history",
        "ok    offering    Cluster of Centre, Active",
        "note  component   cpu: k-Hours here, unit in Waldur",
        "note  component   mem: gb-Hours here, unit in Waldur",
        "ok    resources   1, of 1 account",
        "ok    users       2 of the offering have a username, 0 have none yet",
        "ok    records     are up to date",
        f"note  records     {REACH}: earlier records of 2026-02, which is reported, are missing",
    ]
    assert site.waldur.asked("POST") == []
    assert [each for each in site.waldur.asked() if each.startswith("OPTIONS")]


def test_as_json(site: Site) -> None:
    found = json.loads(site.diagnose("--output", "json").stdout)
    words = {"ok": "ok", "warning": "note", "failure": "FAIL"}
    lines = [f"{words[each['severity']]:4}  {each['subject']:10}  {each['text']}" for each in found]
    assert lines == site.lines()


def test_everything_that_can_be_odd(site: Site) -> None:
    waldur = site.waldur
    waldur.components = {"cpu": "usage", "mem": "fixed", "disk": "usage"}
    waldur.resources = {
        "one": ("other", "OK"),
        "again": ("Other", "OK"),
        "empty": ("", "OK"),
        "idle": ("acct7", "Erred"),
    }
    waldur.users = ["bob", ":Requested"]
    waldur.has_bulk = False
    waldur.now = NOW - timedelta(minutes=6)
    site.options["backend_components"] = {**COMPONENTS, "gres/gpu": {"unit_factor": 60}}
    result = site.diagnose()
    assert result.exit_code == 1
    assert "4 of the checks above failed" in str(result.exception)
    lines = result.output.splitlines()
    for line in (
        "ok    server      Waldur 7.5.0, accepts one user at a time",
        "FAIL  clock       the server's is 360 s behind ours: it refuses our current time as a future time",
        "FAIL  component   mem: is billed by 'fixed', so Waldur accepts no usage of it",
        "FAIL  component   gres/gpu: the offering has none of this type; it has cpu, mem, disk",
        "note  component   disk: the offering has it, but it is not configured: never reported",
        "ok    resources   4, of 2 accounts",
        "note  resources   without backend_id, never reported: empty",
        "FAIL  resources   several have the same backend_id, so none is reported: other",
        "note  resources   in state Erred, for which Waldur accepts no usage: acct7",
        "note  resources   without usage in the reported months: other, acct7",
        "note  accounts    with usage but no resource, never reported: acct1",
        "ok    users       1 of the offering have a username, 1 have none yet",
        "note  users       with usage, but not users of the offering; reported only by name: alice",
        "note  records     of this and the last month lack GPU: see recorded_as and the collector's rules",
    ):
        assert line in lines, f"{line}\nis not in\n{result.output}"


def test_an_offering_that_is_paused(site: Site) -> None:
    site.waldur.state = "Paused:Maintenance until May"
    paused = "Cluster of Centre, Paused (Maintenance until May)"
    line = f"note  offering    {paused}: nothing new can be ordered; its resources are still reported"
    assert line in site.lines()
    site.waldur.state = "Archived"
    assert "note  offering    Cluster of Centre, Archived: is it the right one?" in site.lines()


def test_records_that_reach_back_far_enough(site: Site) -> None:
    start = datetime(2026, 1, 31, 20, tzinfo=UTC)
    site.context.stored = [make_record("old", start=start, site_id="here", account="acct1"), *site.context.stored]
    assert "ok    records     reach back to 2026-01-31T21:00+00:00" in site.lines()
    site.context.stored = [*site.context.stored, make_record("late", start=NOW, site_id="there")]
    site.options["sites"] = ["here", "there"]
    missing = "earlier records of 2026-02, which is reported, are missing"
    assert f"note  records     reach back to 2026-03-15T13:00+00:00: {missing}" in site.lines(), "of each site"


def test_no_records_at_all(site: Site) -> None:
    site.context.stored = [make_record("running", start=YESTERDAY, runtime=None, site_id="here")]
    assert "FAIL  records     of ended jobs are missing for one or more of the sites" in site.lines()
    site.options["sites"] = ["here", "there"]
    assert "FAIL  records     of ended jobs are missing for one or more of here, there" in site.lines()


def test_a_job_that_began_a_while_ago_and_runs_on_is_up_to_date(site: Site) -> None:
    begun = NOW - timedelta(hours=1)
    site.context.stored = [
        make_record("old", start=NOW - timedelta(days=60), account="acct1", site_id="here"),
        make_record("open", start=begun, runtime=None, account="acct1", site_id="here"),
    ]
    assert "ok    records     are up to date" in site.lines()


def test_records_that_do_not_come_in(site: Site) -> None:
    site.context.moment = NOW + timedelta(days=2)
    assert any(line.startswith("FAIL  records     not up to date: no record began") for line in site.lines())


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"waldur_api_token": "stolen"}, "FAIL  token       GET /api/users/me/ was answered 401"),
        (
            {"waldur_api_url": "http://127.0.0.1:1/"},
            "FAIL  url         http://127.0.0.1:1/api/: GET /api/users/me/ was",
        ),
    ],
)
def test_a_waldur_that_does_not_let_us_in_is_reported_and_the_rest_looked_at(
    site: Site, options: dict[str, str], line: str
) -> None:
    site.options |= options
    result = site.diagnose()
    assert result.exit_code == 1
    assert any(each.startswith(line) for each in result.output.splitlines()), result.output
    assert "ok    records     are up to date" in result.output
    assert len(site.waldur.requests) <= 1


def test_an_address_that_is_no_api(site: Site) -> None:
    site.waldur.always["GET"] = Fault(200, body=b"<html>Welcome</html>")
    assert any(
        line.startswith("FAIL  url         http") and "is not in Waldur's format" in line for line in site.lines()
    )


def test_a_token_without_a_role(site: Site) -> None:
    site.waldur.roles = False
    assert any("not found, or the token has no role on it" in line for line in site.lines())


def test_a_token_of_staff(site: Site) -> None:
    site.options["waldur_api_token"] = STAFF_TOKEN
    lines = site.lines()
    assert "ok    token       of service (Service Account), staff" in lines
    assert "ok    role        staff may report everything, including past months" in lines


def programs(argv: Sequence[str]) -> bytes:
    name = argv[0].rpartition("/")[2]
    assert name != "sacctmgr" or list(argv[1:]) == ["--parsable2", "--noheader", "list", "cluster", "format=cluster"]
    return {"sinfo": b"slurm 22.05.8\n", "sacctmgr": b"north\nsouth\n", "sacct": b"acct1|cpu=1|00:10:00|alice\n"}[name]


def test_the_programs_of_slurm_where_figures_come_from_them(site: Site) -> None:
    site.context.commands = programs
    result = site.diagnose("--source", "sacct")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-3:] == [
        "ok    sinfo       slurm 22.05.8",
        "note  sacctmgr    knows several clusters: north, south; see slurm.cluster_name",
        "ok    sacct       answers: 1 account had jobs in the last hour",
    ]
    assert "records" not in result.output
    site.options["slurm"] = {"cluster_name": "west"}
    assert "FAIL  sacctmgr    does not know cluster west; it knows north, south" in site.lines("--source", "sacct")


def clusters(*names: str) -> Callable[[Sequence[str]], bytes]:
    printed = "\n".join(names).encode()
    return lambda argv: printed if programs(argv) and argv[0].endswith("sacctmgr") else programs(argv)


def test_one_cluster_is_the_one_that_is_reported(site: Site) -> None:
    site.context.commands = clusters("north")
    assert site.lines("--source", "sacct")[-2] == "ok    sacctmgr    knows north"


def test_of_many_clusters_the_first_are_named_and_the_others_counted(site: Site) -> None:
    site.context.commands = clusters("a", "b", "c", "d", "e", "f", "g")
    line = site.lines("--source", "sacct")[-2]
    assert line == "note  sacctmgr    knows several clusters: a, b, c, d, e, and 2 more; see slurm.cluster_name"
    site.context.commands = clusters("a", "b", "c", "d", "e")
    assert "knows several clusters: a, b, c, d, e; see" in site.lines("--source", "sacct")[-2]


def test_programs_that_are_missing(site: Site) -> None:
    def none(argv: Sequence[str]) -> bytes:
        raise CommandFailed(f"no program {argv[0]}")

    site.context.commands = none
    result = site.diagnose("--source", "sacct")
    assert result.exit_code == 1
    assert [line.split()[1] for line in result.output.splitlines() if line.startswith("FAIL")] == [
        "amounts",
        "sinfo",
        "sacctmgr",
        "sacct",
    ]
    assert "FAIL  sinfo       no program /usr/bin/sinfo" in result.output.splitlines()
