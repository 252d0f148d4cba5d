"""From a configuration file of AUDITOR's APEL plugin to ours: of version 0.11, and of those up to 0.7."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from auditord_builtin.apel.config import (
    MandatoryJobFields,
    MandatorySummaryFields,
    OptionalJobFields,
    OptionalSummaryFields,
)
from auditord_hookspecs import ImportedConfig, Section

Document = Mapping[str, Any]  # Any: an operator's YAML

_INSTANCE: Final = "plugins.apel"
_SECTIONS: Final = frozenset({"plugin", "site", "auditor", "messaging", "authentication"})
_FIELDS: Final = frozenset({"summary_fields", "individual_job_fields"})
_LEVELS: Final = {"trace": "debug", "critical": "error"}
_MILLISECONDS: Final = 1000
_UNKNOWN: Final = "AUDITOR does not know this option and ignored it; a typing error?"
_HERE: Final = (
    "the plugin reads this daemon's own records; to go on reading a server elsewhere give the instance "
    "source: {url: …}, and put divide_by: 1000 back where that one keeps milliseconds"
)
_DROPPED: Final[Mapping[str, Mapping[str, str]]] = {
    "plugin": {
        "log_file": "the daemon logs to standard error or the journal, which keep and rotate it",
        "time_json_path": "what was published is known beside the records; see site.publish_since",
    },
    "auditor": dict.fromkeys(
        ("ip", "port", "timeout", "use_tls", "ca_cert_path", "client_cert_path", "client_key_path"), _HERE
    ),
}
_DURATIONS: Final = frozenset({"CpuDuration", "base_value"})
_FROM_RECORDS: Final = frozenset({"Site", "Month", "Year", "WallDuration", "NumberOfJobs", "StartTime", "EndTime"})
_FROM_RECORDS_TOO: Final = frozenset({"EarliestEndTime", "LatestEndTime"})
_RENAMED: Final = {"InfrastructureType": "Infrastructure"}
_PUBLISH_SINCE: Final = (
    "publish_since is missing: set it to the first instant of the first month that this daemon is to publish; months "
    "before are those that AUDITOR's plugin has published"
)
_CE: Final = (
    "InfrastructureDescription is AUDITORD-CE-BATCHSYSTEM, without the version that AUDITOR adds; the batch system is "
    "what records have under collector_type, as with AUDITOR, unless batch_system names it"
)
_ZERO_LENGTH: Final = (
    "AUDITOR's plugin leaves out jobs that ran for less than a second, so this does, too; without this line they are "
    "counted"
)


@dataclass
class _Import:
    """The result as it grows."""

    document: Document
    sections: dict[str, Any] = field(default_factory=dict[str, Any])  # Any: YAML that goes into ours
    comments: dict[str, str] = field(default_factory=dict[str, str])
    dropped: dict[str, str] = field(default_factory=dict[str, str])

    def section(self, name: str) -> Document:
        """A section of AUDITOR's file; empty if it is not there."""
        given: Document = self.document.get(name) or {}
        return {key: value for key, value in given.items() if key != "type"}

    def take(self, name: str, known: Sequence[str]) -> dict[str, Any]:  # Any: YAML
        """The options of a section that mean the same in ours; the others are named as dropped."""
        given, reasons = self.section(name), _DROPPED.get(name, {})
        rest = [key for key in given if key not in known]
        self.dropped |= {f"{name}.{key}": reasons.get(key, _UNKNOWN) for key in rest}
        return {key: given[key] for key in known if given.get(key) is not None}

    def remark(self, path: str, text: str) -> None:
        """A remark on a value of ours."""
        self.comments[f"{_INSTANCE}.{path}"] = text


def import_config(document: Document) -> ImportedConfig | None:
    """Translate the file, or None if it is not one of AUDITOR's APEL plugin.

    Raises:
        ValueError: a field is of a type that AUDITOR does not have.
    """
    if not set(document) & _FIELDS or not set(document) & {"site", "messaging", "authentication"}:
        return None
    result = _Import(document)
    options = {"kind": "apel", **_plugin(result), **_site(result), "messaging": _messaging(result)}
    options |= _summary_fields(result) | _job_fields(result)
    known = {*_SECTIONS, *_FIELDS, "type"}
    result.dropped |= {name: _UNKNOWN for name in document if name not in known}
    result.sections |= {f"{_INSTANCE}.{name}": value for name, value in options.items()}
    return ImportedConfig(result.sections, result.comments, result.dropped)


def _plugin(result: _Import) -> dict[str, Any]:  # Any: YAML
    given = result.take("plugin", ("log_level", "report_interval", "message_type"))
    if "log_level" in given:
        level = str(given["log_level"]).lower()
        result.sections["logging.level"] = _LEVELS.get(level, level)
    made: dict[str, Any] = {}  # Any: YAML
    if "report_interval" in given:
        made["interval"] = f"{given['report_interval']}s"
    if "message_type" in given:
        made["message_type"] = given["message_type"]
    return made


def _site(result: _Import) -> dict[str, Any]:  # Any: YAML
    names = ("publish_since", "sites_to_report", "benchmark_type", "ce", "message_type")
    site = result.take("site", names)
    site |= result.take("auditor", ("site_meta_field",))
    made = {"message_type": site.pop("message_type")} if "message_type" in site else {}
    if "publish_since" in site:
        site["publish_since"] = _instant(str(site["publish_since"]))
    else:
        result.remark("site", _PUBLISH_SINCE)
    if "ce" in site:
        result.remark("site.ce", _CE)
    result.remark("site.zero_length_jobs", _ZERO_LENGTH)
    return {**made, "site": {**site, "zero_length_jobs": False}}


def _instant(text: str) -> str:
    """YAML takes a blank between date and time; without zone AUDITOR means UTC."""
    joined = text.strip().replace(" ", "T", 1).replace(" ", "")
    day, _, time = joined.partition("T")
    clock = time or "00:00:00"
    return f"{day}T{clock}" if clock.endswith("Z") or "+" in clock or "-" in clock else f"{day}T{clock}Z"


def _messaging(result: _Import) -> dict[str, Any]:  # Any: YAML
    names = ("host", "port", "client_cert", "client_key", "project", "topic", "timeout", "retry")
    made = result.take("messaging", names)
    if "timeout" in made:
        made["timeout"] = f"{made['timeout']}s"
    older = ("auth_url", "ams_url", "client_cert", "client_key", "ca_path", "verify_ca")
    made |= result.take("authentication", older)
    if "ams_url" in made:
        made["ams_url"] = str(made["ams_url"]).removesuffix("?key=")
    return made


def _summary_fields(result: _Import) -> dict[str, Any]:  # Any: YAML
    return _fields(result, "summary_fields", MandatorySummaryFields, OptionalSummaryFields, _RENAMED)


def _job_fields(result: _Import) -> dict[str, Any]:  # Any: YAML
    return _fields(result, "individual_job_fields", MandatoryJobFields, OptionalJobFields, {})


def _fields(
    result: _Import, name: str, mandatory: type[Section], optional: type[Section], renamed: Mapping[str, str]
) -> dict[str, Any]:  # Any: YAML
    """Ours, each field in the part where we have it."""
    given = result.section(name)
    if not given:
        return {}
    both: dict[str, Document] = {**(given.get("mandatory") or {}), **(given.get("optional") or {})}
    made: dict[str, dict[str, Any]] = {"mandatory": {}, "optional": {}}  # Any: YAML
    for label, source in both.items():
        if label == "type":
            continue
        ours = renamed.get(label, label)
        part = next((part for part, model in _parts(mandatory, optional) if ours in model.model_fields), None)
        if part is None:
            reason = "follows from the record" if ours in _FROM_RECORDS | _FROM_RECORDS_TOO else "APEL does not know it"
            result.dropped[f"{name}.{label}"] = reason
        else:
            made[part][ours] = _field(result, f"{name}.{part}.{ours}", ours, source)
    return {name: {part: fields for part, fields in made.items() if fields}}


def _parts(mandatory: type[Section], optional: type[Section]) -> Sequence[tuple[str, type[Section]]]:
    return (("mandatory", mandatory), ("optional", optional))


def _field(result: _Import, path: str, label: str, source: Document) -> dict[str, Any]:  # Any: YAML
    if "type" not in source:
        raise ValueError(f"{path} has no tag such as !MetaField")
    made: dict[str, Any] = {key: value for key, value in source.items() if value is not None}  # Any: YAML
    if label == "NormalisedCpuDuration" and made["type"] == "NormalisedField" and "base_value" not in made:
        made["base_value"] = {"type": "RecordField", "name": "runtime"}
        result.remark(path, "AUDITOR takes the runtime where base_value is missing; without it ours takes CpuDuration")
    for inner in ("score", "base_value"):
        if inner in made:
            made[inner] = _field(result, f"{path}.{inner}", inner, made[inner])
    if "function" in made:
        function: Document = made["function"]
        made["function"] = {key: value for key, value in function.items() if key != "type"}
    if "function" in made and "regex" in made:
        del made["function"]
        result.remark(path, "function is left out: AUDITOR looks at regex alone where both are given")
    if label in _DURATIONS and made.get("divide_by") == _MILLISECONDS:
        del made["divide_by"]
        result.remark(
            path,
            "divide_by: 1000 is left out, since auditord's collectors write seconds of CPU time (AUDITOR's Slurm "
            "collector: milliseconds). Records that came from there: auditord import auditor --milliseconds "
            f"{made.get('name')}",
        )
    return made
