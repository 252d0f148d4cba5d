"""Hook modules: find their entry points, import them, and call their hooks.

Each implementation is called separately, so that errors name the module.
"""

import logging
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import cache
from importlib.metadata import Distribution, entry_points
from threading import Thread
from typing import Any, Final, cast

import anyio
import msgspec
import pluggy
from pydantic import SecretStr

import auditord_hookspecs
from auditord.config.kinds import InstalledKinds
from auditord.errors import HookError
from auditord_hookspecs.contract import CONTRACT

GROUP = "auditord.hooks"

SLOW_IMPORT: Final = 10.0
"""Seconds after which an import is logged as slow."""

LONGEST_IMPORT: Final = 60.0
"""Seconds after which an import has failed."""

_log: Final = logging.getLogger(__name__)


class HookModule(msgspec.Struct, frozen=True):
    """A hook module in use. Its ``contract`` is the declared version, or None without a declaration."""

    name: str
    module: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    contract: str | None = None

    def __str__(self) -> str:
        return f"{self.module} (entry point {self.name} of {self.distribution} {self.version})"


class HookEntry(msgspec.Struct, frozen=True):
    """An entry point, which can be imported."""

    described: HookModule
    load: Callable[[], object]

    def import_module(self) -> object:
        """Import the hook module.

        Raises:
            HookError: importing took too long, or raised anything except an interrupt (SystemExit included); the
                message names the last line.
        """
        try:
            return _in_time(self.described, self.load)
        except HookError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a module may raise anything; the error must name it
            text = f"{self.described} cannot be imported: {blame(error)}"
            if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == auditord_hookspecs.__name__:
                text += (
                    f"; this auditord has contract {CONTRACT} of hook modules: a module for a later contract needs a "
                    "newer auditord"
                )
            raise HookError(text) from error


def _in_time(described: HookModule, load: Callable[[], object]) -> object:
    """Import in a thread, so that the caller need not wait for an import that hangs, which nothing can stop."""
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
    except BaseException as error:  # noqa: BLE001 outcome.result() raises it again
        outcome.set_exception(error)


def find_entries() -> Sequence[HookEntry]:
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
    """Return the text of an error, with the innermost line of code that raised it, or that Python cannot parse."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


EVENT_TIMEOUT = timedelta(seconds=10)


class Hooks(msgspec.Struct, frozen=True):
    """The hook modules in use, and what they declared.

    Args:
        manager: has every hook module registered under its Python module's name.
        modules: the modules, in the order of the calls.
        event_timeout: the time limit of one implementation for one event.
    """

    manager: pluggy.PluginManager
    modules: Sequence[HookModule]
    kinds: InstalledKinds
    event_timeout: timedelta = EVENT_TIMEOUT

    def declarations(self, name: str, **arguments: object) -> Iterator[tuple[HookModule, Any]]:
        """Yield the values that the implementations of a declaration yield, each with its module.

        Raises:
            HookError: an implementation raised, or returned nothing to iterate; the text names its module.
        """
        for module, implementation in implementations(self.manager, self.modules, name):
            for value in collect_declared(module, implementation, arguments):
                yield module, value

    def resolve_secret(self, reference: str) -> SecretStr | None:
        """Ask the modules in order for the secret behind a reference; None if no module knows it.

        Raises:
            ValueError: a module knows the reference and cannot resolve it.
            HookError: a module failed otherwise.
        """
        name = "auditord_resolve_secret"
        for module, implementation in implementations(self.manager, self.modules, name):
            try:
                secret = _call(implementation, {"reference": reference})
            except ValueError:
                raise  # the hook's own way to reject the reference
            except (Exception, SystemExit) as error:
                raise _failure(module, implementation, error) from error
            if isinstance(secret, SecretStr):
                return secret
            if secret is not None:
                raise HookError(f"{module}: {name} must return a SecretStr or None")
        return None

    async def call_event(self, name: str, **arguments: object) -> None:
        """Call all implementations of an event concurrently. A fault or delay of one is logged and affects no other."""
        async with anyio.create_task_group() as group:
            for module, implementation in implementations(self.manager, self.modules, name):
                group.start_soon(self._tell, module, implementation, arguments)

    async def _tell(self, module: HookModule, implementation: pluggy.HookImpl, arguments: Mapping[str, object]) -> None:
        name, scope = implementation.function.__name__, anyio.CancelScope()
        try:
            with anyio.move_on_after(self.event_timeout.total_seconds()) as scope:
                await cast("Awaitable[None]", _call(implementation, arguments))
        except (Exception, SystemExit):  # noqa: BLE001 the error boundary of an event
            _log.exception("%s failed in %s; the daemon continues", module, name)
        if scope.cancelled_caught:
            _log.error("%s took longer than %s s in %s", module, self.event_timeout.total_seconds(), name)


def implementations(
    manager: pluggy.PluginManager, modules: Iterable[HookModule], name: str
) -> Iterator[tuple[HookModule, pluggy.HookImpl]]:
    """Yield the implementations of a hook with their modules, in the modules' order."""
    caller: pluggy.HookCaller = getattr(manager.hook, name)
    by_module = {each.plugin_name: each for each in caller.get_hookimpls()}
    return ((module, by_module[module.module]) for module in modules if module.module in by_module)


def collect_declared(
    module: HookModule, implementation: pluggy.HookImpl, arguments: Mapping[str, object]
) -> Sequence[Any]:
    """Return all values that one implementation of a declaration yields.

    Raises:
        HookError: it raised, exits included, or returned nothing to iterate.
    """
    try:
        returned = _call(implementation, arguments)
        if isinstance(returned, Iterable):
            return tuple(returned)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    except (Exception, SystemExit) as error:
        raise _failure(module, implementation, error) from error
    returned_type, name = type(returned).__name__, implementation.function.__name__
    raise HookError(f"{module}: {name} returns a value of type {returned_type}, not several values: write yield")


def _call(implementation: pluggy.HookImpl, arguments: Mapping[str, object]) -> object:
    return implementation.function(*(arguments[name] for name in implementation.argnames))


def _failure(module: HookModule, implementation: pluggy.HookImpl, error: BaseException) -> HookError:
    return HookError(f"{module} failed in {implementation.function.__name__}: {blame(error)}")
