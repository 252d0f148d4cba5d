"""Translation of another program's configuration file into ours, for a kind's ``import_config``."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import Any, Final

from auditord_hookspecs.kinds import ImportedConfig

UNKNOWN: Final = "AUDITOR does not know this option and ignored it; a typing error?"
"""Why an option is left out that is none of AUDITOR's."""
OWN_STORE: Final = "the daemon keeps the records itself; a sender can feed another server besides"
"""Why the address of AUDITOR's server is left out of a collector's file."""
OWN_LOG: Final = "the daemon logs to standard error or the journal, which keep and rotate it"
"""Why options of a log file are left out."""
OWN_QUEUE: Final = "the queue is in the daemon's state_dir; let the old collector send what it still has queued"
"""Why the database of a collector of AUDITOR's is left out."""

NO_ENVIRONMENT: Final = "AUDITOR's environment variables were not looked at."

_LEVELS: Final = {"off": "error", "critical": "error", "warn": "warning", "trace": "debug"}
_ZONE: Final = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)$")

Document = Mapping[str, Any]  # Any: an operator's YAML


class ConfigImport:
    """Builds the translation of a configuration file.

    Args:
        document: the other program's file.
        instance: the dotted path of the new section (``collectors.slurm``).
    """

    def __init__(self, document: Document, instance: str) -> None:
        self.document = document
        self.instance = instance
        self.sections: dict[str, Any] = {}  # Any: YAML that goes into ours
        self.comments: dict[str, str] = {}
        self.dropped: dict[str, str] = {}

    def section(self, name: str) -> Document:
        """Return a section of the file; empty if it is not there."""
        return self.document.get(name) or {}

    def put(self, option: str, value: Any, comment: str = "") -> None:  # Any: YAML
        """Set an option of the instance, with a remark if it means something else than it did."""
        self.sections[f"{self.instance}.{option}"] = value
        if comment:
            self.remark(option, comment)

    def remark(self, option: str, comment: str) -> None:
        """Remark on an option of the instance; on the instance itself where ``option`` is empty."""
        self.comments[f"{self.instance}.{option}" if option else self.instance] = comment

    def put_level(self, level: object, comment: str = "") -> None:
        """Set the log level, in our names of levels."""
        lower = str(level).lower()
        self.sections["logging.level"] = _LEVELS.get(lower, lower)
        if comment:
            self.comments["logging.level"] = comment

    def put_earliest(self, jobs: str, comment: str = "") -> None:
        """Set ``earliest_datetime``; without one, remark on what the first run accounts for (``jobs that end``)."""
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
        """Name the options that are not taken.

        Args:
            given: the options of the file, or of a section of it.
            taken: those that were taken.
            reasons: why some are not.
            place: the section, with the dot behind it.
            other: why all others are not.
        """
        for name in given:
            if name not in taken:
                self.dropped[f"{place}{name}"] = (reasons or {}).get(name, other)

    def include(self, other: "ConfigImport | ImportedConfig") -> None:
        """Take over all of another translation, such as that of a second instance from the same file."""
        self.sections.update(other.sections)
        self.comments.update(other.comments)
        self.dropped.update(other.dropped)

    def finished(self, taken: Collection[str], reasons: Mapping[str, str]) -> ImportedConfig:
        """The whole translation, with the log level of the file; names the options of its top level that are not taken.

        Args:
            taken: those that were taken.
            reasons: why some are not.
        """
        if level := self.document.get("log_level"):
            self.put_level(level)
        self.drop(self.document, {*taken, "log_level"}, reasons)
        return self.result()

    def result(self, origin: str = "AUDITOR", notes: Sequence[str] = (NO_ENVIRONMENT,)) -> ImportedConfig:
        """Return the whole translation, of a file of the program ``origin``, with lines about the file as a whole."""
        return ImportedConfig(self.sections, self.comments, self.dropped, origin, notes if origin == "AUDITOR" else ())


def instant(value: date | str) -> str:
    """Return an instant of a YAML file as ISO 8601; in UTC where it names no zone, at midnight where it names no time.

    YAML takes a blank between date and time, and one before the zone.
    """
    text = str(value).strip().replace(" ", "T", 1).replace(" ", "")
    day, _, clock = text.partition("T")
    clock = clock or "00:00:00"
    return f"{day}T{clock}" if _ZONE.search(clock) else f"{day}T{clock}Z"
