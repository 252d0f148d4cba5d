"""Find the entry points of hook modules in installed distributions, built-in or not, and import them."""

import logging
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cache
from importlib.metadata import Distribution, entry_points
from threading import Thread
from typing import Final

import msgspec

import auditord_hookspecs
from auditord.errors import HookError
from auditord_hookspecs.contract import CONTRACT

GROUP = "auditord.hooks"

SLOW_IMPORT: Final = 10.0
"""Seconds after which an import is logged as slow."""

LONGEST_IMPORT: Final = 60.0
"""Seconds after which it has failed."""

_log: Final = logging.getLogger(__name__)


class HookModule(msgspec.Struct, frozen=True):
    """A hook module in use."""

    name: str
    module: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module} (entry point {self.name} of {self.distribution} {self.version})"


class HookEntry(msgspec.Struct, frozen=True):
    """An entry point, which can be imported."""

    described: HookModule
    load: Callable[[], object]

    def import_module(self) -> object:
        """Import the hook module.

        Raises:
            HookError: importing it raised anything but an interrupt, an exit included; the text names the last line.
                Or it took too long.
        """
        try:
            return _in_time(self.described, self.load)
        except HookError:
            raise
        except KeyboardInterrupt:
            raise
        except ImportError as error:
            raise HookError(f"{self.described} cannot be imported: {blame(error)}{_needs_more(error)}") from error
        except BaseException as error:  # a module may raise anything, and must not end the host without its name
            raise HookError(f"{self.described} cannot be imported: {blame(error)}") from error


def _needs_more(error: ImportError) -> str:
    """Return the remedy if an import needs a later version of the contract."""
    if (error.name or "").partition(".")[0] != auditord_hookspecs.__name__:
        return ""
    return f"; this auditord has contract {CONTRACT} of hook modules: a module for a later one needs a newer auditord"


def _in_time(described: HookModule, load: Callable[[], object]) -> object:
    """Import in a thread: nothing ends an import that hangs, but the caller need not wait for it."""
    outcome = Future[object]()
    Thread(target=_load_into, args=(outcome, load), name=f"import of {described.module}", daemon=True).start()
    if not wait([outcome], SLOW_IMPORT).done:
        _log.warning("importing %s takes longer than %g s", described, SLOW_IMPORT)
    if not wait([outcome], LONGEST_IMPORT - SLOW_IMPORT).done:
        raise HookError(f"{described} cannot be imported: it takes longer than {LONGEST_IMPORT:g} s")
    return outcome.result()


def _load_into(outcome: Future[object], load: Callable[[], object]) -> None:
    try:
        outcome.set_result(load())
    except BaseException as error:  # noqa: BLE001 raised again where the outcome is taken
        outcome.set_exception(error)


def installed_entries() -> Sequence[HookEntry]:
    """Return every entry point of the group, in an order that does not depend on the file system."""
    named = cache(_name_and_version)  # without email.parser, which Distribution.metadata needs
    found = [
        HookEntry(HookModule(entry.name, entry.value, *named(entry.dist)), entry.load)
        for entry in entry_points(group=GROUP)
        if entry.dist is not None
    ]
    return sorted(found, key=lambda each: (each.described.distribution, each.described.name))


def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    head = (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "").partition("\n\n")[0]
    fields = {name: text for name, _, text in (line.partition(": ") for line in head.splitlines())}
    return fields.get("Name", "(no name)"), fields.get("Version", "(no version)")


def blame(error: BaseException) -> str:
    """Return the text of an error, with the innermost line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
