"""The features of the host: modules that add checks to ``auditord doctor`` and background work to the daemon.

A feature is a module that implements at least one of the two hooks below, as functions marked with ``@hookimpl``. An
implementation declares only the hook's arguments that it needs.

``feature_checks(configuration, hooks, now, refused_hosts)``
    Yield pairs of a place in the configuration and its checks. ``auditord doctor`` runs the checks.
``feature_work(configuration, current, hooks, storage, store, actions, registry, clock, start_soon, now)``
    Register metrics and start background tasks. The daemon calls it once, after it has started its instances.
    ``configuration`` is the configuration of the start; ``current()`` returns that of the last reload. If the hook
    returns an awaitable, the daemon awaits it before it is ready.

Features are registered with the same plugin manager as the hook modules. Their hooks are not part of the contract for
hook modules: a hook module that implements one of them is refused.
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
"""The modules of the features, in the order in which ``auditord doctor`` shows their findings."""


def features_of(hooks: Hooks) -> Hooks:
    """Return hooks with the features as their only modules.

    Features that the plugin manager of ``hooks`` does not have yet are registered with it.
    """
    for name in FEATURES:
        if not hooks.manager.has_plugin(name):
            hooks.manager.register(import_module(name), name=name)
    return replace(hooks, modules=[HookModule(name, name, "auditord", __version__) for name in FEATURES])
