"""From a configuration file of AUDITOR's APEL plugin to ours: of version 0.11, and of those up to 0.7."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from auditord_builtin.apel import config
from auditord_hookspecs import ImportedConfig, Section
from auditord_hookspecs.config_import import OWN_LOG, ConfigImport, Document, instant

_SECTIONS: Final = frozenset({"plugin", "site", "auditor", "messaging", "authentication"})
_FIELDS: Final = frozenset({"summary_fields", "individual_job_fields"})
_MILLISECONDS: Final = 1000
_HERE: Final = (
    "the plugin reads this daemon's own records; to go on reading a server elsewhere give the instance "
    "source: {url: …}, and put divide_by: 1000 back where that one keeps milliseconds"
)
_DROPPED: Final[Mapping[str, Mapping[str, str]]] = {
    "plugin": {
        "log_file": OWN_LOG,
        "time_json_path": "what was published is known beside the records; see site.publish_since",
    },
    "auditor": dict.fromkeys(
        ("ip", "port", "timeout", "use_tls", "ca_cert_path", "client_cert_path", "client_key_path"), _HERE
    ),
}
_DURATIONS: Final = frozenset({"CpuDuration", "base_value"})
_FROM_RECORDS: Final = frozenset(
    {
        *("Site", "Month", "Year", "WallDuration", "NumberOfJobs"),
        *("StartTime", "EndTime", "EarliestEndTime", "LatestEndTime"),
    }
)
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


def import_config(document: Document) -> ImportedConfig | None:
    """Translate the file, or None if it is not one of AUDITOR's APEL plugin.

    Raises:
        ValueError: a field is of a type that AUDITOR does not have.
    """
    if not set(document) & _FIELDS or not set(document) & {"site", "messaging", "authentication"}:
        return None
    result = ConfigImport(document, "plugins.apel")
    options = {"kind": "apel", **_plugin(result), **_site(result), "messaging": _messaging(result)}
    options |= _fields(result, "summary_fields", config.MandatorySummaryFields, config.OptionalSummaryFields)
    options |= _fields(result, "individual_job_fields", config.MandatoryJobFields, config.OptionalJobFields)
    for name, value in options.items():
        result.put(name, value)
    result.drop(document, {*_SECTIONS, *_FIELDS, "type"})
    return result.result()


def _take(result: ConfigImport, section: str, names: Sequence[str]) -> dict[str, Any]:  # Any: YAML
    """Options of a section that mean the same in ours; the others are dropped."""
    given = result.section(section)
    result.drop(given, {*names, "type"}, _DROPPED.get(section), place=f"{section}.")
    return {name: given[name] for name in names if given.get(name) is not None}


def _plugin(result: ConfigImport) -> dict[str, Any]:  # Any: YAML
    made = _take(result, "plugin", ("log_level", "report_interval", "message_type"))
    if "log_level" in made:
        result.put_level(made.pop("log_level"))
    if "report_interval" in made:
        made["interval"] = f"{made.pop('report_interval')}s"
    return made


def _site(result: ConfigImport) -> dict[str, Any]:  # Any: YAML
    names = ("publish_since", "sites_to_report", "benchmark_type", "ce", "message_type")
    site = _take(result, "site", names)
    site |= _take(result, "auditor", ("site_meta_field",))
    made = {"message_type": site.pop("message_type")} if "message_type" in site else {}
    if "publish_since" in site:
        site["publish_since"] = instant(site["publish_since"])
    else:
        result.remark("site", _PUBLISH_SINCE)
    if "ce" in site:
        result.remark("site.ce", _CE)
    result.remark("site.zero_length_jobs", _ZERO_LENGTH)
    return {**made, "site": {**site, "zero_length_jobs": False}}


def _messaging(result: ConfigImport) -> dict[str, Any]:  # Any: YAML
    names = ("host", "port", "client_cert", "client_key", "project", "topic", "timeout", "retry")
    made = _take(result, "messaging", names)
    if "timeout" in made:
        made["timeout"] = f"{made['timeout']}s"
    older = ("auth_url", "ams_url", "client_cert", "client_key", "ca_path", "verify_ca")
    made |= _take(result, "authentication", older)
    if "ams_url" in made:
        made["ams_url"] = str(made["ams_url"]).removesuffix("?key=")
    return made


def _fields(
    result: ConfigImport, name: str, mandatory: type[Section], optional: type[Section]
) -> dict[str, Any]:  # Any: YAML
    """Ours, each field in the part where we have it."""
    given = result.section(name)
    both: dict[str, Document] = {**(given.get("mandatory") or {}), **(given.get("optional") or {})}
    both.pop("type", None)
    made: dict[str, dict[str, Any]] = {}  # Any: YAML
    for label, source in both.items():
        ours = _RENAMED.get(label, label) if name == "summary_fields" else label
        models = {"mandatory": mandatory, "optional": optional}
        part = next((part for part, model in models.items() if ours in model.model_fields), None)
        if part is None:
            reason = "follows from the record" if ours in _FROM_RECORDS else "APEL does not know it"
            result.dropped[f"{name}.{label}"] = reason
        else:
            made.setdefault(part, {})[ours] = _field(result, f"{name}.{part}.{ours}", ours, source)
    return {name: made} if given else {}


def _field(result: ConfigImport, path: str, label: str, source: Document) -> dict[str, Any]:  # Any: YAML
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
