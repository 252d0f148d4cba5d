"""``auditord status``: how the daemon fares, read from its files; works whether it runs or not."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click
from rich.table import Table

from auditord.cli.asynchronous import run_async
from auditord.cli.clock import utc_now
from auditord.cli.control_client import connected
from auditord.cli.installation import load_installation
from auditord.cli.tables import new_table, print_table
from auditord.config.model import Configuration
from auditord.spool import LastRun, QueueFigures, Spool
from auditord.spool.spool import FILE as SPOOL_FILE
from auditord.store.opening import open_store_for_reading
from auditord.web.control import FILE as CONTROL_FILE
from auditord_hookspecs.wire import format_time


@click.command("status")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def status_command(output: str) -> None:
    """Say how the daemon fares: instances, queues, quarantine, records.

    The exit code is 0 if a daemon answers, 3 if none does.
    """
    status = run_async(_look, load_installation().configuration)
    click.echo(json.dumps(status, indent=2)) if output == "json" else _print(status)
    if not status["running"]:
        raise SystemExit(3)


async def _look(configuration: Configuration) -> dict[str, Any]:  # Any: JSON
    async with connected(configuration.state_dir / CONTROL_FILE) as daemon:
        status: dict[str, Any] = {"running": daemon is not None, "state_dir": str(configuration.state_dir)}
    if not (configuration.state_dir / SPOOL_FILE).exists():
        return status | {"records": 0, "instances": [], "queues": {}, "quarantine": {}}
    async with Spool.opened_read_only(configuration.state_dir, utc_now) as spool:
        figures = await spool.figures()
        runs = await spool.last_runs()
    async with open_store_for_reading(configuration.store.url) as store:
        records = (await store.counts()).total
    return status | {
        "records": records,
        "instances": [_instance(run) for run in runs],
        "queues": {sender: _queue(queue) for sender, queue in figures.queues.items()},
        "quarantine": {f"{task} ({stage})": count for (stage, task), count in figures.quarantined.items()},
    }


def _instance(run: LastRun) -> dict[str, Any]:  # Any: JSON
    return {
        "task": run.task,
        "kind": run.kind,
        "last_run": format_time(run.started),
        "last_success": _time(run.last_success),
        "error": run.error,
        "failures": run.failures,
        "records": run.records,
        "quarantined": run.quarantined,
        "skipped": dict(run.skipped),
    }


def _queue(queue: QueueFigures) -> dict[str, Any]:  # Any: JSON
    return {"entries": queue.entries, "oldest": _time(queue.oldest), "attempts": queue.attempts}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)


def _print(status: Mapping[str, Any]) -> None:  # Any: JSON
    click.echo(f"daemon      {'running' if status['running'] else 'not running'}, state in {status['state_dir']}")
    click.echo(f"records     {status['records']}")
    for sender, queue in status["queues"].items():
        click.echo(f"queue       {sender}: {queue['entries']} waiting since {queue['oldest']}")
    for where, count in status["quarantine"].items():
        click.echo(f"quarantine  {where}: {count}")
    print_table(_table(status))


def _table(status: Mapping[str, Any]) -> Table:  # Any: JSON
    table = new_table("instance", "kind", "last run", "last success", "records", "problem")
    for run in status["instances"]:
        problem = f"{run['failures']} failures: {run['error']}" if run["error"] else ""
        table.add_row(
            run["task"], run["kind"], run["last_run"], run["last_success"] or "never", str(run["records"]), problem
        )
    return table
