"""Remarks of the kinds on a configuration that is valid but hardly meant."""

from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration, kind_of


def remarks(configuration: Configuration, kinds: InstalledKinds) -> list[str]:
    """One line for each remark on an enabled collector, with its place in the configuration."""
    return [
        f"collectors.{name}: {remark}"
        for name, config in configuration.collectors.items()
        if config.enabled and (say := kinds.collectors[kind_of(config)].remarks) is not None
        for remark in say(config)
    ]
