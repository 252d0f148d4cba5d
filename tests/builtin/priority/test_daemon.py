"""The plugin in a daemon: its own records and an AUDITOR's, the gauges, an answer that is cut."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from auditord.testing import make_record
from auditord_hookspecs.wire import encode_record
from tests.fake_auditor import Fault, fake_auditor

JOBS = [
    make_record(f"job-{group}", start=datetime.now(UTC) - timedelta(hours=2), cores=cores, group_id=group)
    for group, cores in (("atlas", 3), ("ilc", 1))
]


def priority(folder: Path, **options: object) -> dict[str, object]:
    return {
        "kind": "priority",
        "run_at_start": True,
        "schedule": "0 0 1 1 *",
        "group_mapping": {"atlas": [], "ilc": []},
        "components": {"Cores": None},
        "max_priority": 100,
        "duration": "1d",
        "commands": [f"touch {folder}/{{group}}-{{priority}}-{{resource}}"],
        **options,
    }


def post(url: str) -> None:
    for record in JOBS:
        body = Request(f"{url}/record", encode_record(record), {"Content-Type": "application/json"})  # noqa: S310 ours
        with urlopen(body) as answer:  # noqa: S310 the same
            assert answer.status == 200


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_priorities_are_set_from_records_here_and_elsewhere(
    auditord_daemon: Callable[..., Any], tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("here", "there", "cut")}
    for folder in folders.values():
        folder.mkdir()
    post(auditord_daemon({}).url)
    with fake_auditor() as auditor:
        auditor.add(JOBS)
        auditor.fault = lambda _, target: Fault.CUT if target.startswith("/cut") else None
        plugins = {
            "here": priority(folders["here"]),
            "there": priority(folders["there"], source={"url": auditor.url}, computation_mode="FullSpread"),
            "cut": priority(folders["cut"], source={"url": f"{auditor.url}/cut"}),
        }
        daemon = auditord_daemon({"plugins": plugins})
        errors = {name: daemon.finish_run(name).error for name in plugins}
    assert (errors["here"], errors["there"]) == (None, None)
    assert errors["cut"]
    assert names(folders["here"]) == ["atlas-75-10800", "ilc-25-3600"]
    assert names(folders["there"]) == ["atlas-100-10800", "ilc-0-3600"]
    assert names(folders["cut"]) == []
    shown = daemon.get("/metrics").decode()
    for line in ('auditord_priority_applied{group="ilc",task="there"} 0.0', 'priority{group="atlas",task="here"} 75.0'):
        assert line in shown
