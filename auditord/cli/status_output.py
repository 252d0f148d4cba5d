"""The state of a daemon as text: lines with a label, then a table of instances; on a terminal, all within its width."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from auditord.cli.installation import utc_now
from auditord.cli.tables import new_table, print_labelled, print_table
from auditord_hookspecs.wire import parse_time
from auditord_hookspecs.wording import counted, span

_TIMES: Final = ("last run", "last success", "next run")


def print_status(status: Mapping[str, Any]) -> None:  # Any: JSON
    """Print what ``auditord status --output json`` has."""
    now = utc_now()
    print_labelled(_lines(status, now))
    table = new_table("instance", "kind", *_TIMES, "records")
    for column in table.columns[2:]:
        column.whole = True  # "5 min ago" is read at a glance; names give way
    for run in status["instances"]:
        times = (distance(run["last_run"], now) or "never", distance(run["last_success"], now) or "never")
        table.add_row(run["task"], run["kind"], *times, _next(run, now), str(run["records"]))
    print_table(table)


def _lines(status: Mapping[str, Any], now: datetime) -> Iterator[tuple[str, str]]:  # Any: JSON
    how = f"running ({status['status']})" if status["running"] else "not running"
    where = f"at {status['url']}" if "url" in status else f"state in {status['state_dir']}"
    yield "daemon", f"{how}, {where}"
    yield from (("problem", error) for error in status.get("errors", ()))
    for run in status["instances"]:
        if run["error"]:
            yield "problem", f"{run['task']}: {_failures(run)}"
    yield from (("remark", remark) for remark in status.get("remarks", ()))
    yield "records", "unknown" if status["records"] is None else str(status["records"])
    for sender, queue in status["queues"].items():
        yield "queue", f"{sender}: {queue['entries']} waiting, the oldest came {distance(queue['oldest'], now)}"
    for sender in status["senders"]:
        state = "not enabled" if not sender["enabled"] else _failures(sender) if sender["error"] else "delivers"
        yield "sender", f"{sender['task']}: {state}"
    yield from _rarer_lines(status)


def _rarer_lines(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:  # Any: JSON
    for turn in status["turns"]:
        silent = ", has not renewed it: the next one takes over" if turn["expired"] else ""
        yield "turn", f"{turn['task']}: process {turn['process']} on {turn['host']} since {turn['since']}{silent}"
    for task, backup in status.get("backups", {}).items():
        age = span(timedelta(seconds=backup["age_seconds"]))
        yield "backup", f"{task}: as of {backup['made_at']}, {age} ago"
    for site, last in status["gaps"].items():
        yield "gap", f"{site or 'records without site_id'}: nothing has ended there since {last}"
    for where, count in status["quarantine"].items():
        yield "quarantine", f"{where}: {count}"


def _failures(run: Mapping[str, Any]) -> str:  # Any: JSON
    return f"{counted(run['failures'], 'failure')}: {run['error']}"


def _next(run: Mapping[str, Any], now: datetime) -> str:  # Any: JSON
    if run["enabled"] is False:
        return "not enabled"
    return "running now" if run["running"] else distance(run["next_run"], now)


def distance(moment: str | None, now: datetime) -> str:
    """The distance of an instant from now, in its largest unit: ``5 min ago``, ``in 2 h``."""
    if moment is None:
        return ""
    length = parse_time(moment) - now
    return f"in {span(length)}" if length > timedelta(0) else f"{span(length)} ago"
