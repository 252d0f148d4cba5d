"""The features of the host: modules that add checks to ``auditord doctor`` and background work to the daemon.

A feature is a module that implements at least one of the two hooks below, as functions marked with ``@hookimpl``. An
implementation declares only the hook's arguments that it needs.

``feature_checks(configuration, hooks, now, refused_hosts)``
    Yield pairs of a place in the configuration and its checks. ``auditord doctor`` runs the checks.
``feature_work(configuration, current, hooks, storage, store, actions, registry, clock, start_soon, now)``
    Register metrics and start background tasks. The daemon calls it once, after it has started the loops of its
    instances. If the hook returns an awaitable, the daemon awaits it before it is ready.

    * ``configuration`` is the configuration of the start; ``current()`` returns that of the last reload.
    * ``storage`` has the open spool, record store and senders; ``store`` is its record store.
    * ``actions`` are the actions that operators can request, such as a run or an audit.
    * ``registry`` collects the metrics of this daemon for ``/metrics``.
    * ``clock`` calls scheduled work; ``start_soon`` starts a background task; ``now`` returns the current time.

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


def register_features(hooks: Hooks) -> Hooks:
    """Register the features with the plugin manager of ``hooks``, and return hooks that have only them as modules."""
    for name in FEATURES:
        if not hooks.manager.has_plugin(name):
            hooks.manager.register(import_module(name), name=name)
    return replace(hooks, modules=[HookModule(name, name, "auditord", __version__) for name in FEATURES])
