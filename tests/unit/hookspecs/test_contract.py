"""The contract keeps what it has: what contract.txt lists is there until the major version grows.

After an addition: ``python -m tests.unit.hookspecs.test_contract`` writes the list anew.
"""

import enum
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import auditord_hookspecs
from auditord.hooks.rules import specified_hooks
from auditord_hookspecs import CONTRACT, Contract

OTHERS = {*dir(BaseModel), *dir(ValueError), *dir(enum.Enum)}
"""The members that pydantic and Python give to every class of theirs."""
LIST = Path(__file__).with_name("contract.txt")


def surface() -> Iterator[str]:
    """Each exported name, with the parameters and members that a module may use; each hook with its arguments."""
    for name in auditord_hookspecs.__all__:
        yield name
        exported = getattr(auditord_hookspecs, name)
        if inspect.isclass(exported):
            yield from (f"{name}.{member}" for member in members(exported))
    for name, function in specified_hooks().items():
        yield from (f"{name}({argument})" for argument in ("", *inspect.signature(function).parameters))


def members(exported: type[Any]) -> Iterator[str]:  # Any: of any kind
    named = {*dir(exported), *getattr(exported, "model_fields", {}), *getattr(exported, "__dataclass_fields__", {})}
    for name in named:
        if not name.startswith("_") and name not in OTHERS:
            yield name
            function = getattr(exported, name, None)
            if inspect.isfunction(function):
                yield from (f"{name}({each})" for each in inspect.signature(function).parameters if each != "self")


def test_nothing_of_the_contract_is_gone() -> None:
    version, *listed = LIST.read_text().splitlines()
    assert Contract.parsed(version) == CONTRACT
    assert set(listed) - set(surface()) == set()
    assert {"Record.start_time", "Batch.checkpoint", "Context.run_command(timeout)"} <= set(listed)


if __name__ == "__main__":
    LIST.write_text("\n".join([str(CONTRACT), *sorted(set(surface()))]) + "\n")
