"""``auditord new-plugin``: create a distribution with a working hook module and its tests."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

import click
import msgspec

from auditord import __version__
from auditord_hookspecs import CONTRACT, AuditordError
from auditord_hookspecs.terminal import say

_NAME: Final = re.compile(r"(?=.{1,30}\Z)[a-z][a-z0-9]*([-_][a-z0-9]+)*")
"""At most 30 characters: longer names would make lines of the templates too long."""


_SECTION: Final = """\
Add a section to auditord's configuration:

```yaml
{section}:
  my_$name:              # the instance's name; several of one kind are fine
    kind: $name
{options}```

"""


class Shape(msgspec.Struct, frozen=True):
    """The texts about a kind of hook in a new distribution.

    Args:
        next: the command that shows the hook at work, as Markdown.
        section: the section of the configuration; empty if the hook needs none.
        options: the options of an instance, as YAML.
    """

    summary: str
    next: str
    section: str = ""
    options: str = ""

    @property
    def use(self) -> str:
        """The steps to see the hook at work, with the placeholder ``$name``."""
        if not self.section:
            return f"It needs no section in auditord's configuration: run {self.next}."
        options = "".join(f"    {line}\n" for line in self.options.splitlines())
        return f"{_SECTION.format(section=self.section, options=options)}Then run {self.next}."


SHAPES: Final[Mapping[str, Shape]] = {
    "collector": Shape(
        "Collector: makes records of the finished jobs that a program lists.",
        "`auditord collect my_$name --dry-run`",
        "collectors",
        "site_id: my-site\ncommand: [echo, 17 alice 2026-01-01T08:00:00Z 2026-01-01T09:00:00Z 8]",
    ),
    "plugin": Shape(
        "Plugin: posts the core hours of each group to a server, period by period.",
        "`auditord trigger my_$name --dry-run`",
        "plugins",
        "url: https://hook.example/usage\nperiod: 7d",
    ),
    "sender": Shape(
        "Sender: sends records to a server of another kind.",
        "`auditord run`",
        "senders",
        "url: https://far.example/records",
    ),
    "authenticator": Shape(
        "Authenticator: identifies callers by a signed token.",
        "`auditord run`",
        "authenticators",
        "secret: file:/etc/auditord/key",
    ),
    "transform": Shape(
        "Transform: renames sites or other labels.",
        "`auditord run`",
        "transforms",
        "key: site_id\nnames: {old-site: new-site}",
    ),
    "importer": Shape(
        "Importer: reads the jobs of another accounting system from a file.",
        "`auditord import $name FILE --dry-run`",
    ),
    "panel": Shape(
        "Panel of the page: shows the number of records of each group.", "`auditord run` and open `/panels`"
    ),
}


@click.command("new-plugin")
@click.argument("name")
@click.option("--kind", type=click.Choice(sorted(SHAPES)), required=True, help="The kind of hook to implement.")
@click.option(
    "--into",
    "parent",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="FOLDER",
    help="Create the new folder in this one; default: the current folder.",
)
def new_plugin_command(name: str, *, kind: str, parent: Path) -> None:
    """Create the folder auditord-NAME with a distribution: a working typed module, its entry point, passing tests.

    NAME is the kind's name in the configuration, such as pbs. Existing files are not changed.
    """
    if not _NAME.fullmatch(name):
        raise click.BadParameter(
            "up to 30 lower-case letters, digits and - between them, starting with a letter: pbs, print-pages",
            param_hint="NAME",
        )
    name = name.removeprefix("auditord-").removeprefix("auditord_").replace("-", "_")
    from auditord.hooks import survey  # noqa: PLC0415 slow to import, after the name is checked

    hooks = survey(()).hooks
    owners = [f"the hook module {module}" for module in hooks.modules if module.name == name]
    if name in getattr(hooks.kinds, f"{kind}s", ()):
        owners = [f"the {kind} {name}"]
    if owners:  # hooks.disabled would mean both
        raise click.BadParameter(f"{owners[0]} has this name already: choose another one", param_hint="NAME")
    folder = parent / f"auditord-{name.replace('_', '-')}"
    try:
        folder.mkdir(parents=True)
        for path, text in _render(name, SHAPES[kind], kind):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")
    except FileExistsError as error:
        raise AuditordError(f"{folder} already exists: choose another name, or another folder with --into") from error
    except OSError as error:
        raise AuditordError(f"{folder} cannot be written: {error.strerror}") from error
    say(f"{folder} contains a working distribution; its code is in src/auditord_{name}/__init__.py.")
    say("Next, in an environment that has auditord:")
    activate = Path(sys.prefix, "bin/activate")
    entered = [f". {activate}"] if activate.exists() and os.environ.get("VIRTUAL_ENV") != sys.prefix else []
    steps = [f"cd {folder}", "pip install -e '.[test]'", "pytest && mypy && ruff check", "auditord hooks"]
    for line in (*entered, *steps):
        say(f"  {line}")
    say("Its README.md shows the section of the configuration that it needs.")
    say("See also: auditord manual writing-plugins, auditord manual types")


def _render(name: str, shape: Shape, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the files' paths below the folder, and their texts."""
    module = f"auditord_{name}"
    values = {
        "name": name,
        "module": module,
        "distribution": module.replace("_", "-"),
        "summary": shape.summary,
        "use": Template(shape.use).substitute(name=name),
        "contract": str(CONTRACT),
        "version": __version__,
    }
    templates = files("auditord.cli").joinpath("plugin_templates")
    for path, template in (
        ("pyproject.toml", "pyproject.toml"),
        ("README.md", "README.md"),
        (f"src/{module}/__init__.py", f"{kind}.py"),
        (f"tests/test_{name}.py", f"test_{kind}.py"),
    ):
        yield path, Template(templates.joinpath(f"{template}.txt").read_text("utf-8")).substitute(values)
    yield f"src/{module}/py.typed", ""
