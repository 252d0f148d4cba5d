"""Call the hooks of the loaded modules, each implementation separately, so that errors name the module."""

import logging
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import anyio
import msgspec
import pluggy
from pydantic import SecretStr

from auditord.config.kinds import InstalledKinds
from auditord.errors import HookError
from auditord.hooks.entries import HookModule, blame

_log = logging.getLogger(__name__)

EVENT_TIMEOUT = timedelta(seconds=10)


class Hooks(msgspec.Struct, frozen=True):
    """The hook modules in use, and what they declared.

    Args:
        manager: has every module registered under the name of its module.
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
            for value in declared_by(module, implementation, arguments):
                yield module, value

    def resolve_secret(self, reference: str) -> SecretStr | None:
        """Ask the modules in order for the secret behind a reference; None if no module knows it.

        Raises:
            ValueError: a module knows the reference and cannot resolve it.
            HookError: a module failed otherwise.
        """
        name = "auditord_resolve_secret"
        for module, implementation in implementations(self.manager, self.modules, name):
            if (secret := _secret_of(module, implementation, reference)) is not None:
                return secret
        return None

    async def call_event(self, name: str, **arguments: object) -> None:
        """Call all implementations of an event at the same time; a fault or delay of one is logged, and its own."""
        async with anyio.create_task_group() as group:
            for module, implementation in implementations(self.manager, self.modules, name):
                group.start_soon(self._tell, module, implementation, arguments)

    async def _tell(self, module: HookModule, implementation: pluggy.HookImpl, arguments: Mapping[str, object]) -> None:
        name, scope = implementation.function.__name__, anyio.CancelScope()
        try:
            with anyio.move_on_after(self.event_timeout.total_seconds()) as scope:
                await cast("Awaitable[None]", _call(implementation, arguments))
        except (Exception, SystemExit):  # noqa: BLE001 the boundary of an event: a module's fault stays its own
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


def declared_by(module: HookModule, implementation: pluggy.HookImpl, arguments: Mapping[str, object]) -> Sequence[Any]:
    """Return all values that one implementation of a declaration yields.

    Raises:
        HookError: it raised, exits included, or returned nothing to iterate.
    """
    try:
        return tuple(cast("Iterable[Any]", _call(implementation, arguments)))
    except (Exception, SystemExit) as error:
        raise _failure(module, implementation, error) from error


def _secret_of(module: HookModule, implementation: pluggy.HookImpl, reference: str) -> SecretStr | None:
    try:
        secret = _call(implementation, {"reference": reference})
    except ValueError:
        raise  # the hook's own way to reject the reference
    except (Exception, SystemExit) as error:
        raise _failure(module, implementation, error) from error
    if secret is not None and not isinstance(secret, SecretStr):
        raise HookError(f"{module}: {implementation.function.__name__} must return a SecretStr or None")
    return secret


def _call(implementation: pluggy.HookImpl, arguments: Mapping[str, object]) -> object:
    return implementation.function(*(arguments[name] for name in implementation.argnames))


def _failure(module: HookModule, implementation: pluggy.HookImpl, error: BaseException) -> HookError:
    return HookError(f"{module} failed in {implementation.function.__name__}: {blame(error)}")
