"""Conversion of another program's configuration file to ours, for a kind's ``import_config``."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import Any, Final

from auditord_hookspecs.kinds import ImportedConfig

UNKNOWN: Final = "AUDITOR does not know this option and ignored it; a typing error?"
"""Why an unknown option is dropped."""
OWN_STORE: Final = "the daemon keeps the records itself; a sender can also send them to another server"
"""Why the address of AUDITOR's server in a collector's file is dropped."""
OWN_LOG: Final = "the daemon logs to standard error or the journal, which keep and rotate it"
"""Why options for a log file are dropped."""
OWN_QUEUE: Final = "the queue is in the daemon's state_dir; let the old collector send what it still has queued"
"""Why the queue database of an AUDITOR collector is dropped."""

NO_ENVIRONMENT: Final = "AUDITOR's environment variables were not read."

_LEVELS: Final = {"off": "error", "critical": "error", "warn": "warning", "trace": "debug"}
_ZONE: Final = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)$")

Document = Mapping[str, Any]  # Any: an operator's YAML


class ConfigImport:
    """Builds the :class:`ImportedConfig` of a configuration file.

    Args:
        document: the other program's file.
        instance: the dotted path of the new section (``collectors.slurm``).
    """

    def __init__(self, document: Document, instance: str) -> None:
        self.document = document
        self.instance = instance
        self.sections: dict[str, Any] = {}  # Any: YAML for our configuration
        self.comments: dict[str, str] = {}
        self.dropped: dict[str, str] = {}

    def section(self, name: str) -> Document:
        """Return a section of the file; empty if it is missing."""
        return self.document.get(name) or {}

    def put(self, option: str, value: Any, comment: str = "") -> None:  # Any: YAML
        """Set an option of the instance, with a remark if its meaning has changed."""
        self.sections[f"{self.instance}.{option}"] = value
        if comment:
            self.remark(option, comment)

    def remark(self, option: str, comment: str) -> None:
        """Add a remark on an option of the instance, or on the instance itself if ``option`` is empty."""
        self.comments[f"{self.instance}.{option}" if option else self.instance] = comment

    def put_level(self, level: object, comment: str = "") -> None:
        """Set the log level, converted to our names of levels."""
        lower = str(level).lower()
        self.sections["logging.level"] = _LEVELS.get(lower, lower)
        if comment:
            self.comments["logging.level"] = comment

    def put_earliest(self, jobs: str, comment: str = "") -> None:
        """Set ``earliest_datetime``. If the file has none, remark which ``jobs`` the first run accounts for."""
        earliest = self.document.get("earliest_datetime")
        if earliest is not None:
            self.put("earliest_datetime", instant(earliest), comment)
            return
        self.comments[self.instance] = (
            f"the first run accounts for {jobs} from then on; to resume where AUDITOR's collector stopped, set "
            "earliest_datetime to the stop time of its last record (duplicates are recognised)"
        )

    def drop(
        self,
        given: Document,
        taken: Collection[str],
        reasons: Mapping[str, str] | None = None,
        *,
        place: str = "",
        other: str = UNKNOWN,
    ) -> None:
        """Note the options that were not converted, with the reason for each.

        Args:
            given: the options of the file, or of one of its sections.
            taken: the names of converted options.
            reasons: the reasons for some of the other options.
            place: the section, with a trailing dot.
            other: the reason for all remaining options.
        """
        for name in given:
            if name not in taken:
                self.dropped[f"{place}{name}"] = (reasons or {}).get(name, other)

    def include(self, other: "ConfigImport | ImportedConfig") -> None:
        """Add the contents of another conversion, such as that of a second instance from the same file."""
        self.sections.update(other.sections)
        self.comments.update(other.comments)
        self.dropped.update(other.dropped)

    def finish(self, taken: Collection[str], reasons: Mapping[str, str]) -> ImportedConfig:
        """Return the result, with the file's log level. All other options at its top level are noted as dropped.

        Args:
            taken: the names of converted options.
            reasons: the reasons for some of the other options.
        """
        if level := self.document.get("log_level"):
            self.put_level(level)
        self.drop(self.document, {*taken, "log_level"}, reasons)
        return self.result()

    def result(self, origin: str = "AUDITOR", notes: Sequence[str] = (NO_ENVIRONMENT,)) -> ImportedConfig:
        """Return the result for a file of the program ``origin``. Only files of AUDITOR get ``notes``."""
        return ImportedConfig(self.sections, self.comments, self.dropped, origin, notes if origin == "AUDITOR" else ())


def instant(value: date | str) -> str:
    """Return an instant of a YAML file as ISO 8601. Without a zone it is in UTC, without a time at midnight.

    YAML allows a blank between date and time, and another one before the zone.
    """
    text = str(value).strip().replace(" ", "T", 1).replace(" ", "")
    day, _, clock = text.partition("T")
    clock = clock or "00:00:00"
    return f"{day}T{clock}" if _ZONE.search(clock) else f"{day}T{clock}Z"
