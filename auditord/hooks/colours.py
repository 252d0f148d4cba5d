"""Compare a hook module with the hookspecs before anything of it is called."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from auditord.config.faults import suggestion
from auditord_hookspecs import hookspec
from auditord_hookspecs.hookspec import PROJECT

Function: TypeAlias = Callable[..., Any]


def specified_hooks() -> Mapping[str, Function]:
    """The hookspecs, by name."""
    functions = vars(hookspec).items()
    return {name: function for name, function in functions if hasattr(function, f"{PROJECT}_spec")}


def implemented_hooks(module: object) -> Mapping[str, Function]:
    """The functions of a module that are marked with ``@hookimpl``, by the hook's name."""
    marked: dict[str, Function] = {}
    for name, function in inspect.getmembers(module, inspect.isroutine):
        if (options := getattr(function, f"{PROJECT}_impl", None)) is not None:
            marked[options.get("specname") or name] = function
    return marked


def is_event(spec: Function) -> bool:
    """Tell an event (``async def``); all other hooks are declarations."""
    return inspect.iscoroutinefunction(spec)


def violations(module: object) -> Iterator[str]:
    """The rules that a hook module breaks: one sentence each, without the module's name."""
    specs, implemented = specified_hooks(), implemented_hooks(module)
    if not implemented:
        yield f"it implements no hook: is @hookimpl missing?{suggestion('', specs)}"
    for name, function in implemented.items():
        if name not in specs:
            yield f"there is no hook {name}{suggestion(name, specs)}"
        else:
            yield from _misimplemented(name, function, specs[name])
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if name in specs and name not in implemented and function.__module__ == getattr(module, "__name__", None):
            yield f"the function {name} is not marked with @hookimpl and would never be called"


def _misimplemented(name: str, function: Function, spec: Function) -> Iterator[str]:
    options = getattr(function, f"{PROJECT}_impl")
    if options.get("wrapper") or options.get("hookwrapper"):
        yield f"{name} is a wrapper: each implementation is called on its own here, so there is nothing to wrap"
    coroutine, generator = inspect.iscoroutinefunction(function), inspect.isgeneratorfunction(function)
    if is_event(spec) and not coroutine:
        yield f"{name} is an event: write 'async def {name}', without yield"
    elif not is_event(spec) and (coroutine or inspect.isasyncgenfunction(function)):
        yield f"{name} is a declaration: write 'def {name}' (what is asynchronous goes into what it returns)"
    elif generator and getattr(spec, f"{PROJECT}_spec").get("firstresult"):
        yield f"{name} returns one value: write return, not yield"
