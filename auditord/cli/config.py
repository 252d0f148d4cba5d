"""``auditord config``: check, show, import, compare and reload the configuration."""

import json
import os
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import SecretStr

from auditord.cli.frame import config_paths
from auditord.cli.installation import Installation, load_installation, load_installed_hooks, run_async
from auditord.config.documents import is_list, is_section
from auditord.config.faults import json_schema
from auditord.config.files import missing_files
from auditord.config.importing import import_files
from auditord.config.kinds import configuration_model, instance_models, remarks
from auditord.config.loading import load_text, load_with_sources
from auditord.config.merging import CONTROL_FILE, configuration_files, read_files
from auditord.config.model import INSTANCE_SECTIONS, Configuration
from auditord.config.shown import HIDDEN_REMARK, show
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.errors import ConfigurationError, DaemonError
from auditord.store.opening import open_store_for_reading
from auditord_hookspecs.arguments import HIDDEN
from auditord_hookspecs.terminal import json_option, output_option, say, write, write_json
from auditord_hookspecs.wire import parse_time
from auditord_hookspecs.wording import counted

if TYPE_CHECKING:
    from auditord.web.api.shapes import Reloaded, ReloadWanted


@click.group("config")
def config_command() -> None:
    """Check, show, import, compare and reload the configuration."""


@config_command.command("check")
@click.option("--connect", is_flag=True, help="Also connect to the record store.")
@click.option("--deep", is_flag=True, help="Also run the checks of auditord doctor.")
@output_option
def check(*, connect: bool, deep: bool, output: str) -> None:
    """Load the configuration as the daemon would, and report errors."""
    if output == "json" and (connect or deep):
        raise click.UsageError(
            "--output json checks only the files: run auditord doctor --output json for other checks"
        )
    load = partial(load_installation, _outside_the_unit)
    try:
        if deep:
            from auditord.cli.doctor import load_or_exit  # noqa: PLC0415 slow to import, needed only here

            installation = load_or_exit(load)
        else:
            installation = load()
    except ConfigurationError as error:
        if output == "text":
            raise
        write_json({"fine": False, "faults": str(error).splitlines(), "remarks": []})
        raise SystemExit(1) from error
    configuration = installation.configuration
    found = remarks(configuration, installation.hooks.kinds)
    found += missing_files(configuration, lambda path: os.access(path, os.R_OK))
    if output == "json":
        write_json({"fine": True, "faults": [], "remarks": found})
        return
    if connect:
        run_async(_connect, configuration)
    for remark in found:
        say(f"remark: {remark}", err=True)
    sections = {name: getattr(configuration, name) for name in INSTANCE_SECTIONS}
    counts = [counted(len(instances), name.removesuffix("s")) for name, instances in sections.items() if instances]
    say(f"the configuration is fine: {', '.join(counts) or 'no instances'}; state in {configuration.state_dir}")
    if deep:
        from auditord.cli.doctor import exit_with, run_checks  # noqa: PLC0415 the same

        exit_with(run_checks(installation), "text", show_all=False)


@config_command.command("schema")
@json_option
def schema() -> None:
    """Print the JSON schema of the configuration with every installed kind, for editors."""
    model = configuration_model(instance_models(load_installed_hooks().kinds))
    write(json.dumps(json_schema(model), indent=2) + "\n")


@config_command.command("show")
@click.option("--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def show_command(output: str) -> None:
    """Print the configuration that the daemon would use, each value with its source; secrets are masked."""
    masked = SecretStr("*" * 64)  # no secret is read, because none is shown
    loaded = load_with_sources(config_paths(), load_installed_hooks().kinds, os.environ, lambda _: masked)
    shown = show(loaded.configuration, loaded.document)
    write(shown.as_yaml() if output == "yaml" else json.dumps(shown.as_json(), indent=2) + "\n")


@config_command.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def import_command(files: Sequence[Path]) -> None:
    """Translate configuration FILES of AUDITOR, an APEL client or a Waldur site agent, and print the result.

    Remarks point out values with a different meaning, and options without a counterpart.
    """
    hooks = load_installed_hooks()
    text = import_files(files, hooks.kinds)
    write(text)
    load_text(text, "the imported configuration", hooks.kinds, os.environ)


@config_command.command("diff")
@output_option
def diff_command(output: str) -> None:
    """Compare the files with the running daemon's configuration. Exit code: 0 no difference, 1 differences.

    Compares the files of --config, if given, and says when new and changed instances would run after a reload.
    """
    from auditord.web.api.shapes import ReloadWanted  # noqa: PLC0415 slow to import, needed only here

    installation, paths = load_installation(), config_paths()
    values = read_files(paths).values
    found = run_async(_ask_to_reload, installation, ReloadWanted(dry_run=True, values=dict(values)))
    files = [str(path.absolute()) for path in configuration_files(paths)]
    say(f"the running configuration -> {', '.join(files) or 'no file'}", err=True)
    if not _are_same(files, found.files):
        say(f"config reload would not read them, but {', '.join(found.files) or 'no file'}", err=True)
    _print_changes(found, installation, output)
    if found.restart:
        say(f"config reload cannot change {', '.join(found.restart)}: restart the daemon instead", err=True)
    raise SystemExit(1 if found.differences else 0)


@config_command.command("reload")
@output_option
def reload_command(output: str) -> None:
    """Make the running daemon reload collectors, plugins, and options of senders from the files.

    If any other option differs, nothing is reloaded, and the daemon names the options that need a restart. Current
    runs have shutdown.grace to end; after that collectors are cancelled, and resume from their checkpoints.
    """
    from auditord.web.api.shapes import ReloadWanted  # noqa: PLC0415 slow to import, needed only here

    installation = load_installation()
    before = run_async(_ask_to_reload, installation, ReloadWanted(dry_run=True))
    files = [str(path.absolute()) for path in configuration_files(config_paths())]
    if not _are_same(files, before.files):
        raise ConfigurationError(
            f"nothing was reloaded: the daemon reads {', '.join(before.files) or 'no file'}, and this command was "
            f"called for {', '.join(files) or 'no file'}: give it the --config of the daemon"
        )
    found = run_async(_ask_to_reload, installation, ReloadWanted())
    _print_changes(found, installation, output)
    if found.restart:
        raise ConfigurationError(f"nothing was reloaded: restart the daemon to change {', '.join(found.restart)}")
    say(f"reloaded: {', '.join(found.instances) or 'nothing differs'}", err=output == "json")


def _are_same(files: Sequence[str], others: Sequence[str]) -> bool:
    return [Path(each).resolve() for each in files] == [Path(each).resolve() for each in others]


async def _ask_to_reload(installation: Installation, wanted: "ReloadWanted") -> "Reloaded":
    from auditord.cli.daemons import connect  # noqa: PLC0415 slow to import, needed only here
    from auditord.web.api.shapes import Reloaded  # noqa: PLC0415 the same

    state_dir = installation.configuration.state_dir
    async with connect(state_dir / CONTROL_FILE) as daemon:
        if daemon is None:
            raise DaemonError(f"no daemon runs on {state_dir}: the next one reads the current files")
        return await daemon.post("configuration/reload", wanted, Reloaded)


def _print_changes(found: "Reloaded", installation: Installation, output: str) -> None:
    if output == "json":
        write_json(found)
        return
    if HIDDEN in str(found.differences):
        say(HIDDEN_REMARK, err=True)
    for each in found.differences:
        if each.running is None and is_section(each.written) and "kind" in each.written:
            section, _, name = each.option.partition(".")
            given = installation.document.values.get(section, {}).get(name, {})
            say(f"{each.option}: new (kind {each.written['kind']})")
            for key in sorted(given.keys() & each.written.keys() - {"kind"}):
                say(f"{each.option}.{key}: {json.dumps(_select_given(given[key], each.written[key]))}")
        elif each.written is None and is_section(each.running) and "kind" in each.running:
            say(f"{each.option}: removed (kind {each.running['kind']})")
        elif is_list(each.running) and is_list(each.written):
            _print_changed_items(each.option, each.running, each.written)
        elif (each.running is None and is_section(each.written)) or (each.written is None and is_section(each.running)):
            whole, sign = (each.written, "+") if each.running is None else (each.running, "-")
            say(f"{each.option}: {sign} {json.dumps(_drop_unset(whole))}")
        else:
            say(f"{each.option}: {json.dumps(each.running)} -> {json.dumps(each.written)}")
    for run in found.runs:
        at = "at once" if run.at is None else f"{parse_time(run.at):%Y-%m-%d %H:%M} UTC"
        effect = f"; it {run.effect}" if run.effect else ""
        say(f"{run.instance}: {'first' if run.is_first else 'next'} run {at}{effect}")


def _print_changed_items(option: str, running: Sequence[Any], written: Sequence[Any]) -> None:
    """Print the items of a list that differ; of those with the same name, only the members that differ."""
    matcher = SequenceMatcher(None, [*map(json.dumps, running)], [*map(json.dumps, written)], autojunk=False)
    changes = [each for each in matcher.get_opcodes() if each[0] != "equal"]
    removed = [item for _, start, end, _, _ in changes for item in running[start:end]]
    for item in (item for _, _, _, start, end in changes for item in written[start:end]):
        name = item.get("name") if is_section(item) else None
        named = [each for each in removed if name is not None and is_section(each) and each.get("name") == name]
        if not named:
            say(f"{option}: + {json.dumps(_drop_unset(item))}")
            continue
        removed.remove(former := named[0])
        if item == former:
            say(f"{option}: {name} moved")
        for key in (key for key in item if item[key] != former.get(key)):
            say(f"{option}: {name}.{key}: {json.dumps(former.get(key))} -> {json.dumps(item[key])}")
    for item in removed:
        say(f"{option}: - {json.dumps(_drop_unset(item))}")


def _drop_unset(item: Any) -> Any:  # Any: JSON
    return {key: each for key, each in item.items() if each not in (None, False, [], {})} if is_section(item) else item


def _select_given(given: Any, values: Any) -> Any:  # Any: JSON
    """Return the values without those that the files do not set."""
    if not (is_section(given) and is_section(values)):
        return values
    return {key: _select_given(given[key], each) for key, each in values.items() if key in given}


def _outside_the_unit(reason: str) -> bool:
    """Continue without a systemd credential if systemd has not started this process."""
    if not reason.startswith("'credential:") or "CREDENTIALS_DIRECTORY" in os.environ:
        return False
    say(f"remark: not checked: {reason}", err=True)
    return True


async def _connect(configuration: Configuration) -> None:
    """Open the record store for reading. A missing SQLite file is fine: the daemon creates it."""
    url = configuration.store.url
    if not is_postgresql(url) and not sqlite_path(url).exists():
        say(f"the record store {sqlite_path(url)} does not exist yet: the daemon creates it")
        return
    async with open_store_for_reading(configuration.store) as store:
        say(f"the record store answers: {counted((await store.counts()).total, 'record')}")
