"""``auditord records correct``, ``close``, ``delete`` and ``history``: change records, and show former versions."""

import json
import os
import pwd
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TextIO, TypeVar

import click
import msgspec

from auditord.actions import Closing, Note, Outcome, RecordActions
from auditord.cli.daemons import actions, daemon_at, url_option
from auditord.cli.installation import in_event_loop, run_async
from auditord.cli.option_types import INSTANT, SPAN, split_pair
from auditord.cli.record_listing import condition, find_label_keys, open_records, stream_records, tabulate
from auditord.cli.tables import print_table
from auditord.web.api.changes import former
from auditord_hookspecs import AuditordError, Component, InvalidRecord, Record, RecordQuery
from auditord_hookspecs.query import AllOf, Condition, IsOpen, Order, SortField
from auditord_hookspecs.terminal import confirm, output_option, say, write_json, yes_option
from auditord_hookspecs.wire import decode_record, encode_record
from auditord_hookspecs.wording import counted

F = TypeVar("F", bound=Callable[..., Any])  # Any: what a command takes
T = TypeVar("T")

_MAX_LISTED = 100


def _common(command: F) -> F:
    """Give a command the options of all commands that change records."""
    for option in _OPTIONS:
        command = option(command)
    return command


_OPTIONS: tuple[Callable[[Any], Any], ...] = (  # Any: commands
    url_option,
    output_option,
    click.option("--dry-run", is_flag=True, help="Show the changes without making them."),
    yes_option,
    click.option("--by", help="Your name in the history; default: your user name, also under sudo."),
    click.option("--reason", required=True, help="The reason, kept with the old version."),
)


@click.command("correct")
@click.argument("record_id", metavar="ID")
@click.option("--start-time", type=INSTANT, help="The new start time.")
@click.option("--stop-time", type=INSTANT, help="The new stop time.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="A new value; KEY= removes the key.")
@click.option("--component", "components", multiple=True, metavar="NAME=AMOUNT", help="A new amount; scores are kept.")
@click.option("--from-file", type=click.File(encoding="utf-8"), help="The whole record as JSON; - is standard input.")
@_common
def correct_command(
    *,
    record_id: str,
    start_time: datetime | None,
    stop_time: datetime | None,
    meta: Sequence[str],
    components: Sequence[str],
    from_file: TextIO | None,
    reason: str,
    by: str | None,
    yes: bool,
    dry_run: bool,
    url: str | None,
    output: str,
) -> None:
    """Correct the record ID; the old version stays in `auditord records history`."""
    edits = Edits(start_time, stop_time, meta, components)
    if (edits == Edits()) == (from_file is None):
        raise click.UsageError("name the fields to change, or give the whole record with --from-file")
    (before,) = run_async(_fetch_records, [record_id], url)
    after = edits.apply(before) if from_file is None else decode_record(from_file.read().encode())
    if after.record_id != record_id:
        raise AuditordError(f"the file holds the record '{after.record_id}': a record's id cannot be changed")
    say(f"- {encode_record(before).decode()}", err=output == "json")
    say(f"+ {encode_record(after).decode()}", err=output == "json")
    outcomes: Sequence[Outcome] = ()
    if not dry_run:
        confirm("Correct it?", yes=yes)
        note = Note(reason, principal_name(by))
        outcomes = [_make_change(lambda records: records.correct(after, before, note), url)]
    _report(outcomes, output, {"before": [before], "after": [after]})


@click.command("delete")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@_common
def delete_command(
    *, ids: Sequence[str], reason: str, by: str | None, yes: bool, dry_run: bool, url: str | None, output: str
) -> None:
    """Delete records; the old versions stay in `auditord records history`.

    Senders do not forward deletions, since no protocol has a request for them: delete copies at each destination.
    If the period is collected again, the record is stored again.
    """
    before = run_async(_fetch_records, ids, url)
    for record in before:
        say(f"- {encode_record(record).decode()}", err=output == "json")
    outcomes: Sequence[Outcome] = ()
    if not dry_run:
        confirm(f"Delete {counted(len(ids), 'record')}?", yes=yes)
        note = Note(reason, principal_name(by))
        outcomes = _make_change(lambda records: records.delete(ids, note), url)
    _report(outcomes, output, {"before": before})


@click.command("close")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--older-than", type=SPAN, help="Instead of ids: all open records that started at least this long ago.")
@click.option(
    "--meta",
    multiple=True,
    metavar="KEY=VALUE",
    help="With --older-than: only records with this site, group, user or value of a meta key.",
)
@click.option("--stop-time", type=INSTANT, help="The stop time.")
@click.option("--runtime", type=SPAN, help="The runtime, instead of a stop time.")
@_common
def close_command(
    *,
    ids: Sequence[str],
    older_than: timedelta | None,
    meta: Sequence[str],
    stop_time: datetime | None,
    runtime: timedelta | None,
    reason: str,
    by: str | None,
    yes: bool,
    dry_run: bool,
    url: str | None,
    output: str,
) -> None:
    """Close open records whose end was never reported; the old versions stay in `auditord records history`.

    Lists the records and asks for confirmation. A stop time that a client reports later replaces the one given here;
    one that a collector finds later is listed as a difference.
    """
    stop: datetime | timedelta
    if stop_time is not None and runtime is None:
        stop = stop_time
    elif runtime is not None and stop_time is None:
        stop = runtime
    else:
        raise click.UsageError("give either --stop-time or --runtime")
    if bool(ids) == (older_than is not None) or (ids and meta):
        raise click.UsageError("name records by their ids, or choose them with --older-than (and --meta)")
    if ids:  # records that have stopped are named, too: closing them reports that
        selected = run_async(_fetch_records, ids, url)
    else:
        selected = run_async(_open_records, condition(older_than=older_than, meta=meta, url=url), url)
    print_table(tabulate(selected[:_MAX_LISTED], find_label_keys(url)), sys.stderr if output == "json" else sys.stdout)
    more = f", the first {_MAX_LISTED} are shown" if len(selected) > _MAX_LISTED else ""
    say(counted(len(selected), "record") + more, err=True)
    outcomes: Sequence[Outcome] = ()
    if selected and not dry_run:
        confirm(f"Close {counted(len(selected), 'record')}?", yes=yes)
        closings, note = [Closing(record.record_id, stop) for record in selected], Note(reason, principal_name(by))
        outcomes = _make_change(lambda records: records.close(closings, note), url)
    _report(outcomes, output, {"before": selected})


@click.command("history")
@click.argument("record_id", metavar="ID")
@output_option
@url_option
@in_event_loop
async def history_command(*, record_id: str, output: str, url: str | None) -> None:
    """Show former versions of the record ID: what changed, when, by whom and why."""
    if url is None:
        async with open_records() as store:
            versions = [former(version) for version in await store.history(record_id)]
    else:
        async with daemon_at(url) as daemon:
            versions = list(await daemon.records.history(record_id))
    if not versions:  # the record may be deleted
        await _fetch_records([record_id], url)  # raises if the id is unknown
    if output == "json":
        write_json(versions)
        return
    for each in versions:
        say(f"{each.changed_at} {each.action.value} by {each.changed_by}: {each.reason}")
        say(f"  former version, from {each.principal}: {msgspec.json.encode(each.record).decode()}")
    say(counted(len(versions), "former version"), err=True)


def principal_name(by: str | None) -> str:
    """Return the name to store with a change: the given one, ``$SUDO_USER``, or the user of this process."""
    if name := by or os.environ.get("SUDO_USER"):
        return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _report(outcomes: Sequence[Outcome], output: str, records: Mapping[str, Sequence[Record]]) -> None:
    """Print the outcomes. Exit with status 1 if a change was not made.

    ``records`` are printed only as JSON: the records ``before`` and, for a correction, ``after`` the change.
    """
    if output == "json":
        documents = {when: [json.loads(encode_record(each)) for each in group] for when, group in records.items()}
        write_json({**documents, "outcomes": outcomes})
    elif outcomes:
        counts = Counter(outcome.outcome for outcome in outcomes)
        say(", ".join(f"{count} {_WORDS[outcome]}" for outcome, count in counts.items()))
    failed = [outcome for outcome in outcomes if outcome.outcome not in {"done", "same"}]
    for outcome in failed:
        say(f"  {outcome.record_id}: {outcome.detail or _WORDS[outcome.outcome]}", err=True)
    if failed:
        raise SystemExit(1)


_WORDS = {
    "done": "done",
    "same": "already up to date",
    "changed": "changed in the meantime: check the record and retry",
    "missing": "not found",
    "refused": "left unchanged",
}


async def _fetch_records(ids: Sequence[str], url: str | None) -> Sequence[Record]:
    """Return records by their ids, released or not.

    Raises:
        AuditordError: one does not exist.
    """
    if url is not None:
        async with daemon_at(url) as daemon:
            found = [await daemon.get(record_id) for record_id in ids]
    else:
        async with open_records() as store:
            texts = [await store.get(record_id) for record_id in ids]
        found = [None if text is None else decode_record(text) for text in texts]
    for record_id, record in zip(ids, found, strict=True):
        if record is None:
            raise AuditordError(f"no record has the id '{record_id}'")
    return [record for record in found if record is not None]


async def _open_records(where: Condition, url: str | None) -> Sequence[Record]:
    query = RecordQuery(AllOf((IsOpen(), where)), Order(SortField.START))
    async with stream_records(query, "store", url) as records:
        return [record async for record in records]


def _make_change(change: Callable[[RecordActions], Awaitable[T]], url: str | None) -> T:
    async def work() -> T:
        async with actions(url) as owner:
            return await change(owner.records)

    return run_async(work)


class Edits(msgspec.Struct, frozen=True):
    """Changes of a record.

    Args:
        meta: ``KEY=VALUE``; several values of one key make a list, ``KEY=`` removes the key.
        components: ``NAME=AMOUNT``; scores are kept.
    """

    start_time: datetime | None = None
    stop_time: datetime | None = None
    meta: Sequence[str] = ()
    components: Sequence[str] = ()

    def apply(self, record: Record) -> Record:
        """Return the changed record.

        Raises:
            InvalidRecord: the changed record would be invalid.
            BadParameter: an option has another form.
        """
        values: dict[str, list[str]] = {}
        for text in self.meta:
            key, value = split_pair(text, "--meta", "KEY=VALUE")
            values.setdefault(key, []).extend([value] if value else [])
        merged = {**(record.meta or {}), **{key: tuple(new) for key, new in values.items()}}
        changed = list(record.components)
        for text in self.components:
            name, equals, digits = text.rpartition("=")
            if not (name and equals and digits.isascii() and digits.isdigit()):
                raise click.BadParameter(f"'{text}' is not NAME=AMOUNT, a whole number", param_hint="--component")
            amount = int(digits)
            places = [place for place, component in enumerate(changed) if component.name == name]
            if len(places) > 1:
                raise InvalidRecord(
                    f"the record has several components {name!r}: give the whole record with --from-file"
                )
            if places:
                changed[places[0]] = msgspec.structs.replace(changed[places[0]], amount=amount)
            else:
                changed.append(Component(name, amount, ()))
        return msgspec.structs.replace(
            record,
            start_time=self.start_time or record.start_time,
            stop_time=self.stop_time or record.stop_time,
            meta={key: value for key, value in merged.items() if value or key not in values} or None,
            components=tuple(changed),
        )
