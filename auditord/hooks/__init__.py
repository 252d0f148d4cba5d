"""Find hook modules by their entry points, check them, and call them."""

from auditord.hooks.hooks import HookEntry, HookModule, Hooks, find_entries
from auditord.hooks.loading import Survey, find_broken_kinds, load_hooks, survey

__all__ = ["HookEntry", "HookModule", "Hooks", "Survey", "find_broken_kinds", "find_entries", "load_hooks", "survey"]
