"""``auditord status --all``: every daemon of a database, as each notes itself there."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from auditord.cli.installation import utc_now
from auditord.cli.tables import new_table, print_table
from auditord.config.model import Configuration
from auditord.store.protocol import HeldTurn, KnownDaemon
from auditord_hookspecs.terminal import say
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.wording import span


async def look_at_all(configuration: Configuration) -> Sequence[dict[str, Any]]:  # Any: JSON
    """The daemons of the configured record store, by host.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    from auditord.store.opening import open_store_for_reading  # noqa: PLC0415 needed only here

    async with open_store_for_reading(configuration.store) as store:
        daemons, turns = await store.daemons(utc_now()), await store.turns()
    return [_as_json(each, turns) for each in daemons]


def _as_json(daemon: KnownDaemon, turns: Sequence[HeldTurn]) -> dict[str, Any]:  # Any: JSON
    state = daemon.state
    return {
        "host": state.host,
        "process": state.process,
        "state_dir": state.state_dir,
        "version": state.version,
        "state": "ended" if state.ended else "running" if daemon.is_running else "silent",
        "seen_seconds_ago": int(daemon.age.total_seconds()),
        "started": format_time(state.started_at),
        "queued": state.queued,
        "oldest": None if state.oldest is None else format_time(state.oldest),
        "quarantined": state.quarantined,
        "turns": [turn.task for turn in turns if (turn.host, turn.process) == (state.host, state.process)],
        "spool_id": state.spool_id,
    }


def print_all(daemons: Sequence[Mapping[str, Any]]) -> None:  # Any: JSON
    """Print a table of daemons."""
    table = new_table(
        "host", "process", "version", "state", "heard of", "queue", "oldest", "quarantine", "turns", "folder"
    )
    for each in daemons:
        ago = f"{span(timedelta(seconds=each['seen_seconds_ago']))} ago"
        waiting = (str(each["queued"]), each["oldest"] or "", str(each["quarantined"]), ", ".join(each["turns"]))
        where = (each["host"], str(each["process"]), each["version"])
        table.add_row(*where, each["state"], ago, *waiting, each["state_dir"])
    print_table(table)
    if not daemons:
        say("No daemon has noted itself in this database within a month.")
