"""The panel of the collector ``kubernetes``: how far namespaces are known, pods that are followed, the last runs."""

from collections.abc import Sequence
from typing import Final

from auditord_hookspecs import Column, Panel, PanelContext, PanelPart, Permission, Table
from auditord_hookspecs.outcomes import restore
from auditord_hookspecs.panels import table_of_runs


async def show_state(context: PanelContext) -> Sequence[PanelPart]:
    """The positions, the numbers of pods, and the last runs."""
    from auditord_builtin.kubernetes.tracking import Checkpoint, TrackedPods  # noqa: PLC0415 when somebody looks at it

    state = await context.state()
    if state is None:
        return ["It has not read anything yet."]
    pods = TrackedPods(await context.pending())
    scopes = restore(state, Checkpoint).scopes
    rows = [("all" if scope == "*" else scope, position.at) for scope, position in sorted(scopes.items())]
    return [
        f"Pods that run: {len(pods.running):,}. Pods that are over and wait for their metrics: {len(pods.waiting):,}.",
        Table([Column("Namespace"), Column("Known until")], rows),
        table_of_runs(await context.last_runs()),
    ]


PANELS: Final = (
    Panel("kubernetes_state", "Kubernetes", show_state, "kubernetes", whole=True, permission=Permission.OPERATE),
)
