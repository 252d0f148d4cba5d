"""``auditord status``: the state of the daemon, from its own report or, if no daemon runs, from its files."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from auditord.backup.notes import last_backups
from auditord.cli.daemons import connect, daemon_at, url_option
from auditord.cli.installation import load_place, run_async, utc_now
from auditord.cli.tables import new_table, print_labelled, print_table
from auditord.config.merging import CONTROL_FILE, Place
from auditord.errors import ConfigurationError, DaemonError, HookError
from auditord.spool import LastRun, Spool
from auditord.spool.spool import FILE as SPOOL_FILE
from auditord_hookspecs import AuditordError
from auditord_hookspecs.terminal import output_option, say, say_error, write
from auditord_hookspecs.wire import format_time, parse_time
from auditord_hookspecs.wording import counted, span

if TYPE_CHECKING:
    from auditord.cli.daemon_client import DaemonClient
    from auditord.web.api.shapes import Instance, Run


NOBODY_ANSWERS = 3

_BETWEEN_LOOKS = 2.0


@click.command("status")
@output_option
@click.option("--all", "everywhere", is_flag=True, help="List all daemons of the configured database.")
@click.option("--watch", is_flag=True, help="Repeat every two seconds, until Ctrl-C.")
@url_option
def status_command(*, output: str, everywhere: bool, watch: bool, url: str | None) -> None:
    """Show the state of the daemon: instances, queues, quarantine, records.

    The exit code is 0 if a daemon answers, 3 if none does. --watch waits for a daemon; Ctrl-C ends it with 0.
    """
    if everywhere and url:
        raise click.UsageError("--all reads the database of this configuration and asks no daemon: leave --url out")
    if watch and output == "json":
        raise click.UsageError("--watch is for a terminal: leave --watch or --output json out")
    look = partial(run_async, _look_at_all) if everywhere else partial(run_async, _look, url)
    show = print_all if everywhere else print_status
    if watch:
        with suppress(KeyboardInterrupt):
            _watch(look, show)
        return
    try:
        status = look()
    except DaemonError as error:
        say_error(str(error))
        raise SystemExit(NOBODY_ANSWERS) from error
    write(json.dumps(status, indent=2) + "\n") if output == "json" else show(status)
    if not everywhere and not status["running"]:
        raise SystemExit(NOBODY_ANSWERS)


def _watch(look: Callable[[], Any], show: Callable[[Any], None]) -> None:  # Any: JSON
    while True:
        try:
            status = look()
        except (ConfigurationError, HookError):
            raise
        except AuditordError as error:  # such as a daemon that is being restarted
            click.clear()
            say(f"{utc_now():%Y-%m-%d %H:%M:%S} UTC: {error}")
            say(f"Trying again every {_BETWEEN_LOOKS:.0f} s, until Ctrl-C.")
        else:
            click.clear()
            show(status)
        time.sleep(_BETWEEN_LOOKS)


async def _look(url: str | None) -> Any:  # Any: JSON
    if url:
        async with daemon_at(url) as daemon:
            return {"running": True, "url": url, **await _live(daemon)}
    place = load_place()
    async with connect(place.state_dir / CONTROL_FILE) as owner:
        state = await (_read_files(place) if owner is None else _live(owner))
    return {
        "running": owner is not None,
        "state_dir": str(place.state_dir),
        **state,
        "backups": {
            task: {
                "made_at": format_time(backup.made_at),
                "age_seconds": int((utc_now() - backup.made_at).total_seconds()),
            }
            for task, backup in last_backups(place.state_dir).items()
        },
    }


# -- a running daemon -------------------------------------------------------------------------------------------------


async def _live(daemon: "DaemonClient") -> dict[str, Any]:  # Any: JSON
    health, known = await daemon.health(), (await daemon.instances()).instances
    return {
        "version": health.version,
        "status": health.status,
        "errors": [part.error for part in (health.store, health.spool) if part.error],
        "records": health.records,
        "instances": [
            {
                **_live_sender(each),
                "running": each.running,
                "remarks": each.remarks,
                "next_run": each.next_run,
                "last_run": each.last_started,
                **_counts(next(iter(each.last_runs), None)),
            }
            for each in known
            if each.section != "senders"
        ],
        "turns": [{"task": each.name, **msgspec.to_builtins(each.turn)} for each in known if each.turn is not None],
        "senders": [_live_sender(each) for each in known if each.section == "senders"],
        "queues": {
            each.sender: {"entries": each.entries, "oldest": each.oldest, "attempts": each.attempts}
            for each in health.queues
        },
        "quarantine": {f"{each.task} ({each.stage})": each.entries for each in health.quarantine},
        "gaps": health.gaps,
    }


def _live_sender(instance: "Instance") -> dict[str, Any]:  # Any: JSON
    return {
        "task": instance.name,
        "kind": instance.kind,
        "enabled": instance.enabled,
        "last_success": instance.last_success,
        "error": instance.last_error,
        "failures": instance.failures,
    }


def _counts(run: "Run | LastRun | None") -> dict[str, Any]:  # Any: JSON
    if run is None:
        return {"records": 0, "quarantined": 0, "skipped": {}}
    return {"records": run.records, "quarantined": run.quarantined, "skipped": dict(run.skipped)}


# -- the files of a stopped daemon ------------------------------------------------------------------------------------


async def _read_files(place: Place) -> dict[str, Any]:  # Any: JSON
    if not (place.state_dir / SPOOL_FILE).exists():
        return {"records": 0, "instances": [], "turns": [], "senders": [], "queues": {}, "quarantine": {}, "gaps": {}}
    from auditord.store.opening import open_store_for_reading  # noqa: PLC0415 slow to import, needed only here
    from auditord.store.silence import site_activity  # noqa: PLC0415 the same

    async with Spool.opened_read_only(place.state_dir, utc_now) as spool:
        statistics = await spool.statistics()
        runs = await spool.last_runs()
    async with open_store_for_reading(place.store) as store:
        records, turns = (await store.counts()).total, await store.turns()
        sites = await site_activity(store, utc_now())
    return {
        "records": records,
        "instances": [
            {
                "task": run.task,
                "kind": run.kind,
                "enabled": None,
                "running": False,
                "next_run": None,
                "last_run": format_time(run.started),
                "last_success": _time(run.last_success),
                "error": run.error,
                "failures": run.failures,
                "remarks": [],  # only the daemon knows them
                **_counts(run),
            }
            for run, *_ in runs.values()
        ],
        "turns": [
            {
                "task": turn.task,
                "host": turn.host,
                "process": turn.process,
                "since": format_time(turn.since),
                "expired": turn.expired,
            }
            for turn in turns
        ],
        "senders": [],
        "queues": {
            sender: {"entries": queue.entries, "oldest": _time(queue.oldest), "attempts": queue.attempts}
            for sender, queue in statistics.queues.items()
        },
        "quarantine": {f"{task} ({stage})": count for (stage, task), count in statistics.quarantined.items()},
        "gaps": {each.site: format_time(each.last) for each in sites if each.is_gap(utc_now())},
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)


async def _look_at_all() -> Any:  # Any: JSON
    """Return the daemons that use the configured record store, as they registered themselves there.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    from auditord.store.opening import open_store_for_reading  # noqa: PLC0415 needed only here

    async with open_store_for_reading(load_place().store) as store:
        daemons, turns = await store.daemons(utc_now()), await store.turns()
    return [
        {
            "host": (state := daemon.state).host,
            "process": state.process,
            "state_dir": state.state_dir,
            "version": state.version,
            "state": "ended" if state.ended else "running" if daemon.is_running else "silent",
            "seen_seconds_ago": int(daemon.age.total_seconds()),
            "started": format_time(state.started_at),
            "queued": state.queued,
            "oldest": _time(state.oldest),
            "quarantined": state.quarantined,
            "turns": [turn.task for turn in turns if (turn.host, turn.process) == (state.host, state.process)],
            "spool_id": state.spool_id,
        }
        for daemon in daemons
    ]


def print_all(daemons: Sequence[Mapping[str, Any]]) -> None:  # Any: JSON
    table = new_table(
        "host", "process", "version", "state", "last seen", "queue", "oldest", "quarantine", "turns", "folder"
    )
    for each in daemons:
        ago = f"{span(timedelta(seconds=each['seen_seconds_ago']))} ago"
        waiting = (str(each["queued"]), each["oldest"] or "", str(each["quarantined"]), ", ".join(each["turns"]))
        where = (each["host"], str(each["process"]), each["version"])
        table.add_row(*where, each["state"], ago, *waiting, each["state_dir"])
    print_table(table)
    if not daemons:
        say("No daemon has registered itself in this database in the last month.")


_TIMES: Final = ("last run", "last success", "next run")


def print_status(status: Mapping[str, Any]) -> None:  # Any: JSON
    """Print the values of ``auditord status --output json`` as text."""
    now = utc_now()
    print_labelled(_lines(status, now))
    table = new_table("instance", "kind", *_TIMES, "records")
    for column in table.columns[2:]:
        column.whole = True  # "5 min ago" stays on one line; names wrap
    for run in status["instances"]:
        times = (distance(run["last_run"], now) or "never", distance(run["last_success"], now) or "never")
        following = "running now" if run["running"] else distance(run["next_run"], now)
        following = "not enabled" if run["enabled"] is False else following
        table.add_row(run["task"], run["kind"], *times, following, str(run["records"]))
    print_table(table)


def _lines(status: Mapping[str, Any], now: datetime) -> Iterator[tuple[str, str]]:  # Any: JSON
    how = f"running ({status['status']})" if status["running"] else "not running"
    where = f"at {status['url']}" if "url" in status else f"state in {status['state_dir']}"
    yield "daemon", f"{how}, {where}"
    yield from (("problem", error) for error in status.get("errors", ()))
    for run in status["instances"]:
        if run["error"]:
            yield "problem", f"{run['task']}: {_failures(run)}"
        yield from (("remark", f"{run['task']}: {remark}") for remark in run["remarks"])
    yield "records", "unknown" if status["records"] is None else str(status["records"])
    for sender, queue in status["queues"].items():
        yield "queue", f"{sender}: {queue['entries']} waiting, the oldest arrived {distance(queue['oldest'], now)}"
    for sender in status["senders"]:
        state = "not enabled" if not sender["enabled"] else _failures(sender) if sender["error"] else "delivers"
        yield "sender", f"{sender['task']}: {state}"
    for turn in status["turns"]:
        silent = "; it was not renewed, so another daemon can take it over" if turn["expired"] else ""
        yield "turn", f"{turn['task']}: process {turn['process']} on {turn['host']} since {turn['since']}{silent}"
    for task, backup in status.get("backups", {}).items():
        age = span(timedelta(seconds=backup["age_seconds"]))
        yield "backup", f"{task}: as of {backup['made_at']}, {age} ago"
    for site, last in status["gaps"].items():
        yield "gap", f"{site or 'records without site_id'}: no job has ended there since {last}"
    for where, count in status["quarantine"].items():
        yield "quarantine", f"{where}: {count}"


def _failures(run: Mapping[str, Any]) -> str:  # Any: JSON
    return f"{counted(run['failures'], 'failure')}: {run['error']}"


def distance(moment: str | None, now: datetime) -> str:
    """Return an instant relative to now in its largest unit: ``5 min ago``, ``in 2 h``."""
    if moment is None:
        return ""
    length = parse_time(moment) - now
    return f"in {span(length)}" if length > timedelta(0) else f"{span(length)} ago"
