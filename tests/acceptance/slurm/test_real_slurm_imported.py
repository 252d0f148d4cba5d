"""AUDITOR's configuration of its Slurm collector, imported: AUDITOR's ids, labels and components, and the outcome."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.slurm.daemon import Site
from tests.slurm_accounting import Plain, Row, base_id, in_seconds, instant, plain
from tests.slurm_jobs import JSON_COMMENT, SlurmJobs, run_slurm

pytestmark = pytest.mark.slurm

AUDITORS = r"""
addr: "auditor.example.org"
port: 8000
record_prefix: "slurm"
earliest_datetime: {since}
sacct_frequency: 300
sender_frequency: 60
database_path: "sqlite:///var/lib/auditor-slurm-collector/db.db"
log_level: info
logging: {{log_to_file: true, log_dir: /var/log/auditor}}
tls_config:
  use_tls: true
  ca_cert_path: /etc/auditor/ca.pem
job_filter:
  status: [completed, failed]
  account: [physics]
sites:
  - name: "SITE-LONG"
    only_if:
      key: "Partition"
      matches: "^long"
  - name: "SITE-REST"
meta:
  - name: "labels"
    key: "Comment"
    key_type: Json
    key_allow_empty: true
  - name: "Partition"
    key: "Partition"
    key_type: String
  - name: "AllocTres"
    key: "AllocTRES"
    key_type: String
  - name: "NNodes"
    key: "NNodes"
components:
  - name: "Cores"
    key: "NCPUS"
    scores:
      - name: "hepscore23"
        value: 18.46
        only_if:
          key: "Partition"
          matches: "^long"
      - name: "hepscore23"
        value: 17.5
        only_if:
          key: "Partition"
          matches: "^(short|gpu)"
  - name: "UserCPU"
    key: "UserCPU"
    key_type: Time
  - name: "Memory"
    key: "ReqMem"
    key_type: IntegerMega
  - name: "LongOnly"
    key: "NNodes"
    only_if:
      key: "Partition"
      matches: "^long"
"""


def test_an_imported_file_yields_what_auditors_collector_sent(slurm_jobs: SlurmJobs, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.environment |= {"AUDITORD_STATE_DIR": str(site.state), "AUDITORD_COLLECTORS__SLURM__LAG": "0s"}
    auditors = tmp_path / "slurm_collector.yml"
    auditors.write_text(AUDITORS.format(since=slurm_jobs.since.isoformat()))
    imported = site.command("config", "import", str(auditors))
    assert (imported.returncode, imported.stderr) == (0, "")
    site.file.write_text(imported.stdout)
    checked = site.command("config", "check")
    assert checked.returncode == 0, checked.stderr
    period = ("--from", slurm_jobs.since.isoformat(), "--to", slurm_jobs.until.isoformat())
    shown = site.command("collect", "slurm", "--dry-run", *period)
    assert shown.returncode == 0, shown.stderr
    expected = auditors_records(slurm_jobs)
    assert len(expected) >= 10
    assert collected(shown.stdout, slurm_jobs) == expected
    assert site.status()["records"] == 0, "a dry run keeps nothing"


def collected(lines: str, jobs: SlurmJobs) -> dict[str, Any]:
    records = [json.loads(line) for line in lines.splitlines()]
    ours = {one["record_id"]: one for one in records if base_id(one["record_id"]) in jobs.ids.values()}
    return {
        name: {**plain(one), "scores": {part["name"]: part["scores"] for part in one["components"]}}
        for name, one in ours.items()
    }


def auditors_records(jobs: SlurmJobs) -> dict[str, Plain]:
    """The records of AUDITOR's collector, by its documentation and code: never a job's earlier runs."""
    columns = "JobID,State,Start,End,User,Group,Partition,AllocTRES,NNodes,NCPUS,UserCPU,ReqMem"
    options = ("-nXP", "--noconvert", "-A", "physics", "-o", columns)
    lines = [
        line for job_id in jobs.ids.values() for line in run_slurm("sacct", *options, "-j", job_id).splitlines() if line
    ]
    rows: list[Row] = [dict(zip(columns.split(","), line.split("|"), strict=True)) for line in lines]
    chosen = [row for row in rows if row["State"] in {"COMPLETED", "FAILED"}]
    return {f"slurm-{row['JobID']}": auditors_record(row, jobs) for row in chosen}


def auditors_record(row: Row, jobs: SlurmJobs) -> Plain:
    start, stop, on_long = instant(row["Start"]), instant(row["End"]), row["Partition"] == "long"
    labels: Plain = json.loads(JSON_COMMENT) if row["JobID"] == jobs.ids["completed"] else {}
    components = {"Cores": int(row["NCPUS"]), "UserCPU": in_seconds(row["UserCPU"]), "Memory": int(row["ReqMem"][:-1])}
    components |= {"LongOnly": int(row["NNodes"])} if on_long else {}
    return {
        "record_id": f"slurm-{row['JobID']}",
        "start_time": start,
        "stop_time": stop,
        "runtime": int((stop - start).total_seconds()),
        "components": components,
        "scores": {name: [] for name in components}
        | {"Cores": [{"name": "hepscore23", "value": 18.46 if on_long else 17.5}]},
        "meta": {
            "Partition": [row["Partition"]],
            "AllocTres": [row["AllocTRES"]],
            "NNodes": [row["NNodes"]],
            "site_id": ["SITE-LONG" if on_long else "SITE-REST"],
            "user_id": [row["User"]],
            "group_id": [row["Group"]],
            "outcome": [row["State"].lower()],  # ours
            **{key: [value] for key, value in labels.items()},
        },
    }
