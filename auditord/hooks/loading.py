"""Load the hook modules. A broken module stops the start, since a daemon without a collector would lose jobs."""

from collections.abc import Iterator, Sequence

import msgspec
import pluggy
from msgspec.structs import replace

from auditord.config.faults import suggestion
from auditord.config.kinds import InstalledKinds, MadeOnUse
from auditord.errors import HookError
from auditord.hooks.entries import HookEntry, HookModule, blame, installed_entries
from auditord.hooks.hooks import Hooks, declared_by, implementations
from auditord.hooks.rules import KIND_HOOKS, KindCollection, contract_fault, implemented_hooks, violations
from auditord_hookspecs import hookspec
from auditord_hookspecs.contract import DECLARED_AS
from auditord_hookspecs.hookspec import PROJECT

WAY_OUT = "repair or uninstall it, or add it to hooks.disabled"


class Survey(msgspec.Struct, frozen=True):
    """The state of all installed hook modules, for ``auditord hooks``.

    Args:
        disabled: modules in ``hooks.disabled``; they were not imported.
        faults: why modules cannot be used; one sentence each.
    """

    hooks: Hooks
    disabled: Sequence[HookModule]
    faults: Sequence[str]


def load_hooks(disabled: Sequence[str], entries: Sequence[HookEntry] | None = None) -> Hooks:
    """Load every installed hook module but the disabled ones.

    Args:
        disabled: entry-point names or modules (``hooks.disabled``).
        entries: what to load instead of all that is installed.

    Raises:
        HookError: at least one cannot be used; the text names each with its module and distribution.
    """
    found = survey(disabled, entries)
    if found.faults:
        lines = "\n  ".join(["the hook modules cannot be used:", *found.faults])
        raise HookError(f"{lines}\n  ({WAY_OUT})")
    return found.hooks


def survey(disabled: Sequence[str], entries: Sequence[HookEntry] | None = None) -> Survey:
    """Load the modules that load, and return the faults of the rest; takes the arguments of :func:`load_hooks`.

    Kinds that are deferred are left so: :func:`broken_kinds` loads them.
    """
    entries = installed_entries() if entries is None else entries
    left_out = [
        each.described for each in entries if not {each.described.name, each.described.module}.isdisjoint(disabled)
    ]
    loader = _Loader()
    loader.faults += _unknown(disabled, entries)
    for entry in entries:
        if entry.described not in left_out:
            loader.take(entry)
    return Survey(loader.finish(), left_out, loader.faults)


def broken_kinds(kinds: InstalledKinds) -> Iterator[str]:
    """Load all deferred kinds, and return their faults, one sentence each."""
    for installed in (*kinds.sections().values(), kinds.importers):
        for name in installed:
            try:
                installed[name]
            except HookError as error:
                yield str(error)


def _unknown(disabled: Sequence[str], entries: Sequence[HookEntry]) -> Iterator[str]:
    names = {name for entry in entries for name in (entry.described.name, entry.described.module)}
    for name in disabled:
        if name not in names:
            yield f"hooks.disabled: no hook module or entry point is called '{name}'{suggestion(name, names)}"


class _Loader:
    """Registers modules one by one and collects the faults of refused ones."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspec)
        self._modules: list[HookModule] = []

    def take(self, entry: HookEntry) -> None:
        """Import, check and register one module."""
        try:
            module = entry.import_module()
            self._check(entry.described, module)
            self._manager.register(module, name=entry.described.module)
        except HookError as error:
            self.faults.append(str(error))
        except pluggy.PluginValidationError as error:
            self.faults.append(f"{entry.described}: {error}")
        except Exception as error:  # noqa: BLE001 even looking at a module may raise; its fault gets its name
            self.faults.append(f"{entry.described} cannot be inspected: {blame(error)}")
        else:
            self._modules.append(replace(entry.described, hooks=tuple(sorted(implemented_hooks(module)))))

    def finish(self) -> Hooks:
        """Return the accepted modules, with their kinds."""
        collection = KindCollection()
        for name in KIND_HOOKS:
            for module, implementation in implementations(self._manager, self._modules, name):
                try:
                    collection.add(name, [(module, kind) for kind in declared_by(module, implementation, {})])
                except HookError as error:
                    self.faults.append(str(error))
        self.faults += collection.faults
        kinds = {section: MadeOnUse(makers) for section, makers in collection.accepted.items()}
        return Hooks(self._manager, tuple(self._modules), InstalledKinds(**kinds))

    def _check(self, described: HookModule, module: object) -> None:
        """Raise HookError if the module is there already, or breaks a rule of the hooks."""
        for other in self._modules:
            if other.module == described.module:
                raise HookError(f"{described} is loaded already, as {other}")
        if reason := contract_fault(getattr(module, DECLARED_AS, None), described.distribution):
            raise HookError(f"{described}: {reason}")
        if reasons := "; ".join(violations(module)):
            raise HookError(f"{described}: {reasons}")
