"""Put ``auditord-epilog`` into the distribution unchanged, including its first line.

The build backend's own ``shared-scripts`` rewrites ``#!/usr/bin/python3 -IS`` to a placeholder, which pip turns into
the environment's interpreter without flags: slower by a third, at the end of every job.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "builtin_plugins/auditord_builtin/slurm/epilog/script.py"


class ScriptsHook(BuildHookInterface[Any]):
    """Adds the script to the wheel's ``.data/scripts``; pip installs the files of that folder unchanged."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Say where the file belongs; an editable installation has its own list."""
        name = self.build_config.builder.project_id
        included = build_data["force_include_editable" if version == "editable" else "force_include"]
        included[SOURCE] = f"{name}.data/scripts/auditord-epilog"
