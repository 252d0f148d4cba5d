"""Load the hook modules, and refuse those that break a rule before anything is configured.

A broken module stops the start, since a daemon without a collector would lose jobs.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
import pluggy
from msgspec.structs import replace

from auditord.config.faults import suggestion
from auditord.config.kinds import InstalledKinds, MadeOnUse
from auditord.config.model import INSTANCE_NAME
from auditord.errors import HookError
from auditord.hooks.hooks import HookEntry, HookModule, Hooks, blame, collect_declared, find_entries, implementations
from auditord_hookspecs import (
    AuthenticatorKind,
    CollectorKind,
    Deferred,
    ImporterKind,
    InstanceConfig,
    PluginKind,
    Section,
    SenderKind,
    TransformKind,
    hookspec,
)
from auditord_hookspecs.contract import CONTRACT, DECLARED_AS, Contract
from auditord_hookspecs.hookspec import PROJECT

Function: TypeAlias = Callable[..., Any]
Declared: TypeAlias = tuple[HookModule, Any]  # Any: what a hook module yields is checked here

_DECLARATIONS: Mapping[str, tuple[str, type]] = {
    "auditord_collectors": ("collectors", CollectorKind),
    "auditord_plugins": ("plugins", PluginKind),
    "auditord_senders": ("senders", SenderKind),
    "auditord_authenticators": ("authenticators", AuthenticatorKind),
    "auditord_record_transforms": ("transforms", TransformKind),
    "auditord_importers": ("importers", ImporterKind),
}
KIND_HOOKS = tuple(_DECLARATIONS)


@dataclass(slots=True)
class KindCollection:
    """Collects kinds, and the faults of refused ones. A deferred kind is imported and checked when it is requested."""

    faults: list[str] = field(default_factory=list[str])
    _owners: dict[tuple[str, str], HookModule] = field(default_factory=dict[tuple[str, str], HookModule])
    accepted: dict[str, dict[str, Callable[[], Any]]] = field(default_factory=dict[str, dict[str, Callable[[], Any]]])

    def add(self, hook: str, declared: Iterable[Declared]) -> None:
        """Add the kinds that the implementations of one hook declared."""
        section, kind_type = _DECLARATIONS[hook]
        for module, kind in declared:
            reasons = list(_unusable(kind, kind_type, section))
            if not reasons and (owner := self._owners.setdefault((section, kind.name), module)) is not module:
                reasons = [f"declares the kind '{kind.name}' of {section}, as {owner} does: disable one of them"]
            self.faults += [f"{module} {reason}" for reason in reasons]
            if not reasons:
                made = partial(_make, module, kind, kind_type, section)
                self.accepted.setdefault(section, {})[kind.name] = made


def _make(module: HookModule, declared: Any, kind_type: type, section: str) -> Any:  # Any: kinds of the section
    """Return a declared kind; import it if it is deferred.

    Raises:
        HookError: a deferred kind cannot be imported, or breaks a rule.
    """
    if not isinstance(declared, Deferred):
        return declared
    kind: Any = HookEntry(module, declared.load).import_module()
    if reasons := list(_unusable(kind, kind_type, section)):
        raise HookError("\n  ".join(f"{module} {reason}" for reason in reasons))
    if kind.name != declared.name:
        raise HookError(f"{module} declares the kind '{declared.name}' of {section}, which loads as '{kind.name}'")
    return kind


def _unusable(kind: Any, kind_type: type, section: str) -> Iterator[str]:
    if not isinstance(kind, (kind_type, Deferred)):
        yield f"declares {kind!r} among its {section}: yield values of {kind_type.__name__}"
        return
    declared: Any = kind  # Any: a Struct that is made by a call checks none of its fields
    called = f"declares the kind '{declared.name}' of {section}, "
    if not (isinstance(declared.name, str) and re.fullmatch(INSTANCE_NAME, declared.name)):
        yield f"{called}whose name is not an identifier: lower-case letters, digits and _, starting with a letter"
    if isinstance(kind, Deferred):
        return
    base, named = (Section, "Section") if kind_type is ImporterKind else (InstanceConfig, "RunConfig or InstanceConfig")
    if not (inspect.isclass(declared.config) and issubclass(declared.config, base)):
        yield f"{called}whose config is not a model derived from {named}"
    elif "kind" in declared.config.model_fields:
        yield f"{called}whose config has an option 'kind', which the host adds itself"
    for name, (use, arguments) in _FUNCTIONS.items():
        if (function := getattr(kind, name, None)) is not None:
            used: Use = "called" if use == "opened" and kind_type is ImporterKind else use
            if reason := _wrong_form(name, function, used) or _wrong_arguments(function, arguments):
                yield f"{called}whose {name} {reason}"


Use: TypeAlias = Literal["iterated", "awaited", "called", "opened"]

_FUNCTIONS: Final[Mapping[str, tuple[Use, tuple[str, ...]]]] = {
    "collect": ("iterated", ("config", "context")),
    "inventory": ("iterated", ("config", "context")),
    "check": ("iterated", ("config", "context")),
    "run": ("awaited", ("config", "context")),
    "reach": ("awaited", ("config", "context")),
    "open": ("opened", ("config", "context")),
    "convert": ("called", ("config", "raw")),
    "make": ("called", ("config",)),
    "prefix": ("called", ("config",)),
    "remarks": ("called", ("config",)),
    "provides": ("called", ("config",)),
    "labels": ("called", ("config",)),
    "needs": ("called", ("config",)),
    "needs_labels": ("called", ("config",)),
    "no_inventory": ("called", ("config",)),
    "roles": ("called", ("config",)),
    "names_users": ("called", ("config",)),
    "job_of": ("called", ("raw",)),
    "detect": ("called", ("host",)),
    "demo": ("called", ()),
}
"""The functions of kinds with their arguments. ``import_config`` is missing, since its arguments depend on the kind."""


def _wrong_form(name: str, function: Function, use: Use) -> str | None:
    """Return why a function of this form fails in any case; a plain function may return what another one made."""
    coroutine, generator = inspect.iscoroutinefunction(function), inspect.isgeneratorfunction(function)
    async_generator = inspect.isasyncgenfunction(function)
    if use == "iterated" and coroutine:
        return "never yields: write yield"
    if use == "awaited" and (generator or async_generator):
        return "yields: it is awaited, so remove the yield"
    if (use == "iterated" and generator) or (use == "awaited" and _returns_nothing(function)):
        return f"is not async: write 'async def {name}'"
    if use == "called" and (coroutine or async_generator):
        return "is async: it is called without waiting"
    if use == "opened" and (coroutine or generator or async_generator):
        return "is not a context manager: decorate it with @asynccontextmanager"
    return None


def _returns_nothing(function: Function) -> bool:
    """Return whether a plain function is annotated with ``-> None``. A wrapper has the annotations of another one."""
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function) or hasattr(function, "__wrapped__"):
        return False
    returned: object = function.__annotations__.get("return", ...)
    return returned is None or returned == "None"


def _wrong_arguments(function: Function, arguments: Sequence[str]) -> str | None:
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a wrapper may add arguments
    except (TypeError, ValueError):  # a built-in
        return None
    try:
        signature.bind(*arguments)
    except TypeError:
        return f"takes ({', '.join(signature.parameters)}): it must take ({', '.join(arguments)})"
    return None


def find_specs() -> Mapping[str, Function]:
    """Return the hookspecs, by name."""
    functions = vars(hookspec).items()
    return {name: function for name, function in functions if hasattr(function, f"{PROJECT}_spec")}


def find_implementations(module: object) -> Mapping[str, Function]:
    """Return the functions of a module with ``@hookimpl``, by the hook's name."""
    marked: dict[str, Function] = {}
    for name, function in inspect.getmembers(module, inspect.isroutine):
        if (options := getattr(function, f"{PROJECT}_impl", None)) is not None:
            marked[options.get("specname") or name] = function
    return marked


def contract_fault(declared: object, distribution: str) -> str | None:
    """Return why a module for this version of the contract cannot be used, and the remedy; None if it can.

    Args:
        declared: the version that the module declares; None for the first version.
        distribution: the module's distribution, which the remedy names.
    """
    try:
        wanted = Contract(1, 0) if declared is None else Contract.parsed(declared)
    except ValueError as error:
        return f"{DECLARED_AS}: {error}"
    said = f"it was written for contract {wanted} of hook modules, and this auditord has {CONTRACT}"
    if wanted.major < CONTRACT.major:
        return f"{said}: update {distribution} to a release for contract {CONTRACT.major}, or keep an older auditord"
    if wanted > CONTRACT:
        return f"{said}: update auditord, or install a release of {distribution} for contract {CONTRACT}"
    return None


def violations(module: object) -> Iterator[str]:
    """Yield the rules that a hook module breaks: one sentence each, without the module's name."""
    specs, implemented = find_specs(), find_implementations(module)
    if not implemented:
        yield f"it implements no hook: is @hookimpl missing?{suggestion('', specs)}"
    for name, function in implemented.items():
        if name not in specs:
            yield f"there is no hook {name}{suggestion(name, specs)}"
        else:
            spec, options = specs[name], getattr(function, f"{PROJECT}_impl")
            if options.get("wrapper") or options.get("hookwrapper"):
                yield f"{name} is a wrapper: each implementation is called on its own here, so there is nothing to wrap"
            coroutine, generator = inspect.iscoroutinefunction(function), inspect.isgeneratorfunction(function)
            is_event = inspect.iscoroutinefunction(spec)  # all others are declarations
            if is_event and not coroutine:
                yield f"{name} is an event: write 'async def {name}', without yield"
            elif not is_event and (coroutine or inspect.isasyncgenfunction(function)):
                yield f"{name} is a declaration: write 'def {name}' (put asynchronous work into its result)"
            elif generator and getattr(spec, f"{PROJECT}_spec").get("firstresult"):
                yield f"{name} returns one value: write return, not yield"
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if name in specs and name not in implemented and function.__module__ == getattr(module, "__name__", None):
            yield f"the function {name} is not marked with @hookimpl and would never be called"


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
    """Load every installed hook module, except the disabled ones.

    Args:
        disabled: entry-point names or modules (``hooks.disabled``).
        entries: the entry points to load instead of all installed ones.

    Raises:
        HookError: at least one cannot be used; the message names each with its module and distribution.
    """
    found = survey(disabled, entries)
    if found.faults:
        lines = "\n  ".join(["the hook modules cannot be used:", *found.faults])
        raise HookError(f"{lines}\n  ({WAY_OUT})")
    return found.hooks


def survey(disabled: Sequence[str], entries: Sequence[HookEntry] | None = None) -> Survey:
    """Load the usable modules, and return them with the faults of the others; see :func:`load_hooks` for arguments.

    Deferred kinds are not loaded: :func:`find_broken_kinds` does that.
    """
    entries = find_entries() if entries is None else entries
    left_out = [
        each.described for each in entries if not {each.described.name, each.described.module}.isdisjoint(disabled)
    ]
    loader = _Loader()
    names = {name for entry in entries for name in (entry.described.name, entry.described.module)}
    loader.faults += [
        f"hooks.disabled: no hook module or entry point is called '{name}'{suggestion(name, names)}"
        for name in disabled
        if name not in names
    ]
    for entry in entries:
        if entry.described not in left_out:
            loader.take(entry)
    return Survey(loader.finish(), left_out, loader.faults)


def find_broken_kinds(kinds: InstalledKinds) -> Iterator[str]:
    """Load all deferred kinds, and yield their faults, one sentence each."""
    for installed in (*kinds.sections().values(), kinds.importers):
        for name in installed:
            try:
                installed[name]
            except HookError as error:
                yield str(error)


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
        except Exception as error:  # noqa: BLE001 even inspecting a module may raise; its fault must name it
            self.faults.append(f"{entry.described} cannot be inspected: {blame(error)}")
        else:
            hooks = tuple(sorted(find_implementations(module)))
            self._modules.append(replace(entry.described, hooks=hooks, contract=getattr(module, DECLARED_AS, None)))

    def finish(self) -> Hooks:
        """Return the accepted modules, with their kinds."""
        collection = KindCollection()
        for name in KIND_HOOKS:
            for module, implementation in implementations(self._manager, self._modules, name):
                try:
                    collection.add(name, [(module, kind) for kind in collect_declared(module, implementation, {})])
                except HookError as error:
                    self.faults.append(str(error))
        self.faults += collection.faults
        kinds = {section: MadeOnUse(makers) for section, makers in collection.accepted.items()}
        return Hooks(self._manager, tuple(self._modules), InstalledKinds(**kinds))

    def _check(self, described: HookModule, module: object) -> None:
        """Raise HookError if the module is loaded already, or breaks a rule of the hooks."""
        for other in self._modules:
            if other.module == described.module:
                raise HookError(f"{described} is loaded already, as {other}")
        if reason := contract_fault(getattr(module, DECLARED_AS, None), described.distribution):
            raise HookError(f"{described}: {reason}")
        if reasons := "; ".join(violations(module)):
            raise HookError(f"{described}: {reasons}")
