"""Open the configured authenticators."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import InstanceContext
from auditord.errors import ConfigurationError
from auditord.hooks import Hooks
from auditord.web.access.gate import Gate
from auditord_hookspecs import Authenticate, InstanceConfig


class HostAuthenticatorContext(InstanceContext):
    """What an authenticator is lent.

    Args:
        instance: the instance's name.
        kind: the kind's name.
        now: the present instant.
        state_dir: the daemon's folder.
    """

    def __init__(self, instance: str, kind: str, now: Callable[[], datetime], state_dir: Path) -> None:
        super().__init__(instance, kind, now)
        self._state_dir = state_dir

    @property
    def state_dir(self) -> Path:
        """The daemon's folder."""
        return self._state_dir


@asynccontextmanager
async def opened_gate(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> AsyncGenerator[Gate | None, None]:
    """The gate that the configuration describes; None if it has no authenticator, so that nobody is asked.

    Raises:
        ConfigurationError: an authenticator cannot be opened; the text names it.
    """
    enabled = {name: config for name, config in configuration.authenticators.items() if config.enabled}
    async with AsyncExitStack() as stack:
        opened: dict[str, Authenticate] = {}
        for name, config in enabled.items():
            context = HostAuthenticatorContext(name, kind_of(config), now, configuration.state_dir)
            opened[name] = await _opened(stack, hooks, name, config, context)
        yield Gate(opened, configuration.access.known_roles()) if opened else None


async def _opened(
    stack: AsyncExitStack, hooks: Hooks, name: str, config: InstanceConfig, context: HostAuthenticatorContext
) -> Authenticate:
    try:
        return await stack.enter_async_context(hooks.kinds.authenticators[kind_of(config)].open(config, context))
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"authenticators.{name} cannot be opened: {error}") from error
