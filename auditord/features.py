"""The features of the host, and the hooks by which doctor and daemon call them.

A feature is a module with functions of the names below, each marked with ``@hookimpl``; a function takes those of the
hook's arguments that it needs. The plugin manager of the hook modules has the features, too. Their hooks are not part
of the contract: a hook module that implements one is refused.

``feature_checks(configuration, hooks, now, refused_hosts)``
    Yield places in the configuration, each with the checks of ``auditord doctor`` for it.
``feature_work(configuration, current, hooks, storage, store, actions, registry, clock, start_soon, now)``
    Register metrics, and start loops in the background. Called once, after the daemon has started its instances;
    ``current()`` is the configuration as of the last reload. What it returns, if anything, is awaited before the daemon
    is ready.
"""

from importlib import import_module
from typing import Final

from msgspec.structs import replace

from auditord import __version__
from auditord.hooks import HookModule, Hooks

FEATURES: Final = (
    "auditord.storage",
    "auditord.tasks.checks",
    "auditord.web.checks",
    "auditord.store.checks",
    "auditord.lake.feature",
    "auditord.tasks.audits",
    "auditord.backup.feature",
)
"""Modules, in the order of their findings."""


def features_of(hooks: Hooks) -> Hooks:
    """Register the features with the manager of the hook modules, unless they are; return what calls only them."""
    for name in FEATURES:
        if not hooks.manager.has_plugin(name):
            hooks.manager.register(import_module(name), name=name)
    return replace(hooks, modules=[HookModule(name, name, "auditord", __version__) for name in FEATURES])
