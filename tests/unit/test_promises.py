"""Every name that ``manual/stability.md`` promises stays: a file in ``promised`` may gain lines, and loses none.

With each release, ``python -m tests.unit.test_promises`` adds the names that are new. A line is taken out by hand, with
a new major version, or before 1.0.
"""

import enum
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import pytest
from pydantic import BaseModel

import auditord_hookspecs
from auditord.cli import auditord
from auditord.hooks.loading import find_specs
from auditord.manual import text_of
from auditord.web.api.document import describe
from auditord.web.api.handlers import API
from auditord.web.operations import list_operations
from auditord_hookspecs import CONTRACT

FOLDER: Final = Path(__file__).with_name("promised")
OTHERS = {*dir(BaseModel), *dir(ValueError), *dir(enum.Enum)}
"""The members that pydantic and Python give to every class of theirs."""


def commands() -> Iterator[str]:
    """Each command of the command line, with its options."""
    yield from _below(auditord, click.Context(auditord, info_name="auditord"))


def _below(command: click.Command, context: click.Context) -> Iterator[str]:
    yield context.command_path
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            yield from (f"{context.command_path} {name}" for name in (*parameter.opts, *parameter.secondary_opts))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _below(below, click.Context(below, info_name=name, parent=context))


def configuration() -> Iterator[str]:
    """Each option of the daemon and of the kinds that ship, by its section."""
    heading = ""
    for line in text_of("options").splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        elif named := re.match(r"- `([^`]+)`:", line):
            yield f"{heading}: {named[1]}"


def contract() -> Iterator[str]:
    """Each exported name, with the parameters and members that a module may use; each hook with its arguments."""
    yield f"CONTRACT {CONTRACT.major}"
    for name in auditord_hookspecs.__all__:
        yield name
        exported = getattr(auditord_hookspecs, name)
        if inspect.isclass(exported):
            yield from (f"{name}.{member}" for member in _members(exported))
    for name, function in find_specs().items():
        yield from (f"{name}({argument})" for argument in ("", *inspect.signature(function).parameters))


def _members(exported: type[Any]) -> Iterator[str]:  # Any: of any kind
    named = {*dir(exported), *getattr(exported, "model_fields", {}), *getattr(exported, "__dataclass_fields__", {})}
    for name in named:
        if not name.startswith("_") and name not in OTHERS:
            yield name
            function = getattr(exported, name, None)
            if inspect.isfunction(function):
                yield from (f"{name}({each})" for each in inspect.signature(function).parameters if each != "self")


def exit_codes() -> Iterator[str]:
    """Each exit code of each command, as the manual's page says."""
    for code, who in re.findall(r"^\| (\d) \| ([^|]+) \|", text_of("exit-codes"), re.MULTILINE):
        yield from (f"{code} {name.strip(' `')}" for name in who.split(","))


def metrics() -> Iterator[str]:
    """Each metric and its type; AUDITOR's have none in the reference."""
    text = text_of("metrics")
    yield from (f"{name} {kind}" for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE))
    yield from re.findall(r"`([a-z]\w+_\w+)`", text.partition("names are")[2].partition("\n\n")[0])


def routes() -> Iterator[str]:
    """Each route, with its parameters, answers and permission; each member of what is asked and answered."""
    yield from re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", text_of("routes"), re.MULTILINE)
    document = describe(list_operations(API), {})
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            yield from (name, f"{name}: {operation['operationId']}", f"{name}: {operation['description']}")
            yield from (f"{name} {parameter['in']} {parameter['name']}" for parameter in operation["parameters"])
            yield from (f"{name} {status}" for status in operation["responses"])
    for name, schema in document["components"]["schemas"].items():
        yield from (f"{name}.{member}" for member in schema.get("properties", ()))


PROMISED: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    each.__name__: each for each in (commands, configuration, contract, exit_codes, metrics, routes)
}


@pytest.mark.parametrize("name", PROMISED)
def test_nothing_that_is_promised_is_gone(name: str) -> None:
    promised = (FOLDER / f"{name}.txt").read_text().splitlines()
    assert len(promised) > 10
    assert set(promised) - set(PROMISED[name]()) == set()


def test_names_of_every_depth_are_promised() -> None:
    promised = {line for path in FOLDER.iterdir() for line in path.read_text().splitlines()}
    assert {
        *("Record.start_time", "Batch.checkpoint", "Context.run_command(timeout)"),
        *("auditord records --open", "auditord database copy --from", "3 status"),
        *("auditord_queue_entries gauge", "num_records_database"),
        *("POST /record", "GET /api/v1/records query cursor", "GroupSums.records"),
    } <= promised


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for kept, names in PROMISED.items():
        path = FOLDER / f"{kept}.txt"
        before = path.read_text().splitlines() if path.exists() else []
        path.write_text("".join(f"{line}\n" for line in sorted({*before, *names()})))
