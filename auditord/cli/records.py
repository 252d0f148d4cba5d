"""``auditord records``: list and export records, beside a running daemon or without one."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import click
import msgspec
from click.core import ParameterSource
from msgspec.structs import replace

from auditord.cli.daemons import url_option
from auditord.cli.frame import LazyGroup
from auditord.cli.installation import run_async
from auditord.cli.record_listing import (
    Export,
    export_of,
    listing_options,
    open_records,
    query_of,
    stream_records,
    write_records,
)
from auditord.cli.tables import new_table, print_table
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.terminal import say, write
from auditord_hookspecs.wording import counted


@click.group(
    "records",
    cls=LazyGroup,
    module="auditord.cli.amending",
    names=("close", "correct", "delete", "history"),
    invoke_without_command=True,
)
@listing_options
@click.option("--include", type=click.Choice(["lake"]), help="Also show released records, which only the lake has.")
@click.option(
    "--source",
    type=click.Choice(["store", "lake"]),
    default="store",
    show_default=True,
    help="The records of the store, or those of the lake as of its last commit.",
)
@url_option
@click.option("--differences", is_flag=True, help="Show instead the records that arrived again with different content.")
@click.pass_context
def records_command(  # Any: click's values
    ctx: click.Context,
    /,
    *,
    differences: bool,
    include: str | None,
    source: Literal["store", "lake"],
    url: str | None,
    **chosen: Any,
) -> None:
    """Show records, or export them as JSON, NDJSON or CSV.

    Times are in UTC. Reads the record store directly, with or without a running daemon, or asks the daemon at --url.
    The commands below change single records and show their former versions.
    """
    if ctx.invoked_subcommand is not None:
        # A filter before the subcommand would be ignored.
        for parameter in ctx.command.params:
            if parameter.expose_value and ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"write {parameter.opts[0]} after '{ctx.invoked_subcommand}'", ctx)
        return
    query = replace(query_of(**chosen, url=url), released=include is not None)
    if differences and url is not None:
        raise click.UsageError("--differences reads the record store itself: leave --url out")
    if source == "lake" and (differences or include is not None):
        raise click.UsageError("--source lake reads the lake alone: leave --differences and --include out")
    if differences:
        run_async(_print_differences, chosen["form"])
    else:
        run_async(_export, query, source, chosen["form"], export_of(**chosen, url=url), url)


async def _export(
    query: RecordQuery, source: Literal["store", "lake"], form: str, export: Export, url: str | None
) -> None:
    async with stream_records(query, source, url) as records:
        await write_records(records, query, form, export)


async def _print_differences(form: str) -> None:
    table, count = new_table("seen (UTC)", "from", "record", "value", "stored", "offered"), 0
    async with open_records() as store, store.differences() as differences:
        async for each in differences:
            count += 1
            if form != "table":
                stored_text = "null" if each.stored is None else each.stored.decode()
                seen_at, offered_text = each.seen_at.isoformat(), each.offered.decode()
                write(f'{{"seen_at":"{seen_at}","stored":{stored_text},"offered":{offered_text}}}\n')
                continue
            head = [f"{each.seen_at:%Y-%m-%d %H:%M:%S}", each.principal or "", each.record_id]
            stored = {} if each.stored is None else _flatten(each.stored)
            offered = _flatten(each.offered)
            differing = [name for name in {**stored, **offered} if stored.get(name) != offered.get(name)]
            for name in differing or ["order"]:
                absent = "in the lake" if each.stored is None else ""
                table.add_row(*head, name, stored.get(name, absent), offered.get(name, ""))
                head = ["", "", ""]
    if form == "table":
        print_table(table)
        say(counted(count, "difference", "differences"), err=True)


def _flatten(text: bytes) -> dict[str, str]:
    """Return the values of a record by name, components and labels among them. Several of one name are in order."""
    record: dict[str, Any] = msgspec.json.decode(text)
    labels: Mapping[str, Sequence[str]] = record.get("meta") or {}
    values = {name: str(value) for name, value in record.items() if name not in {"components", "meta"}}
    for each in record["components"]:
        name = f"component {each.pop('name')}"
        scores = "".join(f", {score['name']} {score['value']}" for score in each["scores"])
        values[name] = "; ".join(filter(None, [values.get(name, ""), f"{each['amount']}{scores}"]))
    return values | {f"label {key}": ", ".join(found) for key, found in labels.items()}
