"""From a computing element's script over a real Slurm's comments to a message at APEL, as the manual describes it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Final

import anyio
import pytest

from auditord.manual.topics import text_of
from auditord_hookspecs.mapping import parse_duration
from auditord_hookspecs.months import Month
from tests.ams_broker import AmsBroker, ams_broker
from tests.builtin.apel.apel_receiver import Receiver
from tests.host_certificates import Authority, HostFiles
from tests.slurm_jobs import missing_slurm, run_slurm, submit, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.anyio]

PROGRAM: Final = Path(sys.executable).with_name("auditord")
PRODUCTION: Final = "/atlas/Role=production/Capability=NULL"
ROBOT: Final = "/DC=org/DC=example/CN=Jean Dupont, robot"
BUSY: Final = "sh -c 'ulimit -t 3; while :; do :; done'; exit 0"
"""Almost three seconds of CPU time, however long that takes."""


@dataclass(frozen=True)
class GridJob:
    """A job that a computing element submits for a local user."""

    user: str
    voms: str
    dn: str
    command: str = "sleep 2"
    options: Sequence[str] = ("-A", "physics", "-c", "2")


def block(language: str) -> str:
    """The first block of the chapter in this language."""
    found = re.search(rf"^```{language}\n(.*?)^```", text_of("apel-slurm"), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def submit_as_element(job: GridJob, host: str) -> str:
    """Submit a job as HTCondor-CE does: what the site's script prints comes before the job's own lines."""
    script = f"hostname() {{ echo {host}; }}\n{block('sh')}"
    environment = {"PATH": os.environ["PATH"], "Voms": job.voms, "UserDN": job.dn}
    printed = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    return submit(job.user, *job.options, script=f"#!/bin/bash\n{printed.stdout}{job.command}\n")


def wait_for(job_ids: Sequence[str]) -> None:
    def is_over() -> bool:
        ends = run_slurm("sacct", "-nXP", "-j", ",".join(job_ids), "-o", "End").split()
        return len(ends) == len(job_ids) and "Unknown" not in ends

    wait_until(is_over, "the jobs to end", 120)


def add_up(job_ids: Sequence[str]) -> Mapping[str, str]:
    """The figures of a message, from sacct's times alone; of CPU time, whole seconds of each job count."""
    # With -X, this sacct prints no CPU time; without, the first of the rows is the whole job's.
    printed = [run_slurm("sacct", "-nP", "-j", each, "-o", "ElapsedRaw,NCPUS,TotalCPU") for each in job_ids]
    rows = [text.splitlines()[0].split("|") for text in printed]
    wall, cpu = sum(int(row[0]) for row in rows), sum(int(parse_duration(row[2])) for row in rows)
    [cores] = {row[1] for row in rows}
    return {
        "WallDuration": str(wall),
        "CpuDuration": str(cpu),
        "NormalisedWallDuration": f"{{HEPscore23: {normalise(wall)}}}",
        "NormalisedCpuDuration": f"{{HEPscore23: {normalise(cpu)}}}",
        "Processors": cores,
        "NumberOfJobs": str(len(rows)),
    }


def normalise(seconds: int) -> Decimal:
    return (seconds * Decimal("12.4")).quantize(Decimal(1), ROUND_HALF_UP)


def configure(folder: Path, ams: AmsBroker, host: HostFiles, job_ids: Sequence[str], since: datetime) -> Path:
    """Write the chapter's configuration, and beside it what is another matter at every site."""
    broker = ams.for_client(host)
    places = {"auth_url": broker.token_url, "ams_url": broker.publish_url(), "ca_path": str(ams.authority.file)}
    messaging = {**places, "client_cert": str(host.certificate), "client_key": str(host.key)}
    begin = Month.of(since).start.isoformat()
    sacct = ["sacct", f"--jobs={','.join(job_ids)}"]  # other tests' jobs may run beside
    own = {
        "state_dir": str(folder / "state"),
        "collectors": {"slurm": {"earliest_datetime": begin, "sacct": sacct, "lag": "0s"}},
        "plugins": {"apel": {"site": {"publish_since": begin}, "messaging": messaging}},
    }
    (folder / "conf.d").mkdir()
    (folder / "auditord.yml").write_text(block("yaml"))
    (folder / "conf.d/own.yml").write_text(json.dumps(own))
    return folder / "auditord.yml"


async def test_the_jobs_of_a_computing_element_arrive_at_apel_with_their_figures(tmp_path: Path) -> None:
    if reason := missing_slurm():
        pytest.skip(reason)
    since = datetime.now(UTC)
    production = [GridJob("alice", PRODUCTION, ROBOT, BUSY), GridJob("alice", PRODUCTION, ROBOT)]
    produced = [submit_as_element(job, "ce1.example.org") for job in production]
    pilot = submit_as_element(GridJob("bob", "/cms,/cms/pilot", '/CN=O\'Brien "x"'), "ce2.example.org")
    forged = submit("carol", "-A", "biology", "--comment", "{'voms':'/atlas'}", "--wrap", "sleep 1")
    wait_for([*produced, pilot, forged])
    until = datetime.now(UTC) + timedelta(seconds=1)

    async def run(*arguments: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = await anyio.run_process([PROGRAM, *arguments, "--config", file], check=False, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode() + done.stderr.decode()

    authority = Authority(tmp_path)
    async with ams_broker(authority) as ams:
        file = str(configure(tmp_path, ams, authority.issue("ce.example.org"), [*produced, pilot, forged], since))
        assert "the configuration is fine: 1 collector, 1 plugin" in (checked := await run("config", "check"))
        assert "remark" not in checked
        assert "slurm: 4 records" in await run(
            "collect", "slurm", "--from", since.isoformat(), "--to", until.isoformat()
        )
        await run("apel", "publish")
        receiver = Receiver()
        for text in ams.texts():
            receiver.take(text)
    both = {"Site": "EXAMPLE-SITE", "Infrastructure": "grid", "InfrastructureDescription": "AUDITORD-HTCONDOR-CE-slurm"}
    atlas = {"GlobalUserName": ROBOT, "VO": "atlas", "VOGroup": "/atlas", "VORole": "Role=production"}
    cms = {"GlobalUserName": "/CN=O'Brien x", "VO": "cms", "VOGroup": "/cms", "VORole": "None"}
    expected = [
        {**both, **atlas, "SubmitHost": "ce1.example.org", **add_up(produced)},
        {**both, **cms, "SubmitHost": "ce2.example.org", **add_up([pilot])},
    ]
    found = sorted(receiver.rows.values(), key=lambda row: row["VO"])
    assert [{name: row[name] for name in wanted} for row, wanted in zip(found, expected, strict=True)] == expected
    assert int(found[0]["CpuDuration"]) >= 2
