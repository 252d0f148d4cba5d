"""Commands are synchronous, what they use is not."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple, Unpack

import anyio

from auditord.errors import plain_errors

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def run_async(work: Callable[[Unpack[Ts]], Awaitable[T]], *arguments: *Ts) -> T:
    """Run something asynchronous to its end; one fault in a background task is raised as that fault."""
    with plain_errors():
        return anyio.run(work, *arguments, backend_options={"use_uvloop": True})
    raise AssertionError("unreachable")
