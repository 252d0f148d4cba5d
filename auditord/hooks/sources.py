"""The sources of the daemon and of the installed hook modules, for references that are made of them."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec

from auditord.hooks.entries import installed_entries


class Source(msgspec.Struct, frozen=True):
    """A module that is not imported for this."""

    module: str
    path: Path

    def text(self) -> str:
        """Return the module's text. Callers search it first, since parsing takes far longer than reading."""
        return self.path.read_text("utf-8")


def installed_sources() -> Iterator[Source]:
    """Yield the modules of the daemon, of the contract and of every installed hook module."""
    for name in sorted({"auditord", "auditord_hookspecs", *(entry.described.module for entry in installed_entries())}):
        yield from _sources(name)


def _sources(name: str) -> Iterator[Source]:
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        for folder in map(Path, spec.submodule_search_locations):
            for path in sorted(folder.rglob("*.py")):
                parts = path.relative_to(folder).with_suffix("").parts
                yield Source(".".join((name, *parts)).removesuffix(".__init__"), path)
    elif spec is not None and spec.origin:
        yield Source(name, Path(spec.origin))
