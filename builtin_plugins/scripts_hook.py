"""Put ``auditord-epilog`` into the distribution unchanged, including its first line.

The build backend's own ``shared-scripts`` rewrites ``#!/usr/bin/python3 -IS`` to a placeholder, which pip turns into
the environment's interpreter without flags. Each start would then take a third longer, at the end of every job.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "builtin_plugins/auditord_builtin/slurm/epilog/script.py"


class ScriptsHook(BuildHookInterface[Any]):
    """Adds the script to the wheel's ``.data/scripts`` folder, whose files pip installs unchanged."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the script to the wheel. Editable installations have a list of their own."""
        name = self.build_config.builder.project_id
        included = build_data["force_include_editable" if version == "editable" else "force_include"]
        included[SOURCE] = f"{name}.data/scripts/auditord-epilog"
