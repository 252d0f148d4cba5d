"""What most commands begin with: the hook modules and the configuration that belongs to them."""

import os
from dataclasses import dataclass

from auditord.cli.frame import config_paths
from auditord.config.documents import Document
from auditord.config.loading import disabled_hooks, load_with_sources
from auditord.config.model import Configuration
from auditord.hooks import Hooks, load_hooks


@dataclass(frozen=True, slots=True)
class Installation:
    """This host's hook modules and configuration.

    Args:
        hooks: every module that is not disabled.
        configuration: checked against the kinds of the modules.
        document: where each value of the configuration was written.
    """

    hooks: Hooks
    configuration: Configuration
    document: Document


def load_installation() -> Installation:
    """Load the hook modules and then the configuration that the user's ``--config`` and the environment say.

    Raises:
        HookError: a module cannot be used.
        ConfigurationError: the configuration cannot be used.
    """
    hooks = load_installed_hooks()
    loaded = load_with_sources(config_paths(), hooks.kinds, os.environ, hooks.resolve_secret)
    return Installation(hooks, loaded.configuration, loaded.document)


def load_installed_hooks() -> Hooks:
    """Load the hook modules that the configuration does not disable; the rest of it is not looked at.

    Raises:
        HookError: a module cannot be used.
        ConfigurationError: a file cannot be read, or ``hooks`` in it is wrong.
    """
    return load_hooks(disabled_hooks(config_paths(), os.environ))
