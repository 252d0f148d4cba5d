"""Import the configuration file of AUDITOR's utilisation plugin."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import OWN_LOG, ConfigImport, Document

_MILLISECONDS: Final = frozenset({"slurm", "kubernetes"})
_NAMES: Final = {"cores": "components.cores", "total_cpu": "components.cpu_time", "benchmark": "benchmark"}
_DROPPED: Final = {
    "auditor": "the daemon reports on its own records; for a server elsewhere write source: {url: 'http://host:port'}, "
    "and one instance for each of several hosts",
    "logging.file": OWN_LOG,
    "utilization.interval": "a month is reported once, when it is over; that is kept in the plugin's state",
    "utilization.oneshot": "auditord report utilisation --month … shows a report at once",
}
_MAIL: Final = (
    "the addresses and the password were in the environment. Write mail: {{server: {{host: {host}, port: {port}, "
    "security: starttls, user: …, password: 'file:/path'}}, sender: …, recipients: […]}}"
)
_KNOWN: Final = {
    "logging": {"level", "file"},
    "auditor": None,
    "utilization": {
        "groupedby",
        "grouped_list",
        "watt_per_core",
        "co2_per_kwh",
        "interval",
        "file_name",
        "file_path",
        "oneshot",
    },
    "cluster": {"watt_per_core"},
    "email": None,
}


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a file of AUDITOR's utilisation plugin; None for any other file."""
    if "utilization" not in document:
        return None
    result = ConfigImport(document, "plugins.utilisation")
    result.put("kind", "utilisation")
    _import_groups(result)
    _import_energy(result)
    _import_components(result)
    _import_file(result)
    if level := result.section("logging").get("level"):
        result.put_level(level)
    _list_dropped(result)
    return result.result()


def _import_groups(result: ConfigImport) -> None:
    options = result.section("utilization")
    if "groupedby" in options:
        result.put("group_keys", [str(options["groupedby"])])
    listed: Sequence[Any] = options.get("grouped_list") or []  # Any: YAML
    if listed:
        rules = [{"matches": re.escape(str(name)), "name": str(name)} for name in listed]
        remark = "a part of the name is enough, as with AUDITOR (there a job could count in several groups; here the "
        result.put("group_names", rules, remark + "first rule decides); for the whole name write ^name$")
        return
    result.put(
        "group_names",
        [
            {"matches": r"^/([^/]+).*/Role=NULL(?:/|$)", "name": "{1}"},
            {"matches": r"^/([^/]+).*/Role=([^/]+)", "name": "{1}-{2}"},
            {"matches": r"^/([^/]+)", "name": "{1}"},
        ],
        "VOMS attributes by VO and role, as with AUDITOR",
    )


def _import_energy(result: ConfigImport) -> None:
    options = result.section("utilization")
    sites: Document = result.section("cluster").get("watt_per_core", {}).get("site") or {}
    if sites:
        values = {str(site): {"watt_per_core": watt} for site, watt in sites.items()}
        result.put("energy.sites", values)
        if options.get("watt_per_core") is not None:
            remark = "of all other sites; AUDITOR took these for 0 W beside a list of sites"
            result.put("energy.watt_per_core", options["watt_per_core"], remark)
    elif options.get("watt_per_core") is not None:
        result.put("energy.watt_per_core", options["watt_per_core"])
    if options.get("co2_per_kwh") is not None:
        result.put("energy.co2_per_kwh", options["co2_per_kwh"], "kg per kWh")


def _import_components(result: ConfigImport) -> None:
    source = result.section("auditor")
    named: Document = source.get("component_fields_in_record") or {}
    for name in set(_NAMES) & set(named):
        result.put(_NAMES[name], str(named[name]))
    if source.get("collector_type") in _MILLISECONDS:
        remark = "as AUDITOR's collector writes it; auditord's own collectors write seconds: s"
        result.put("components.cpu_time_unit", "ms", remark)
    site_field = source.get("site_meta_field")
    if site_field:
        keys = [site_field] if isinstance(site_field, str) else [str(each) for each in site_field]
        result.put("site_keys", keys, "AUDITOR required this and looked at the key site all the same")


def _import_file(result: ConfigImport) -> None:
    options = result.section("utilization")
    folder = Path(str(options.get("file_path", "."))).absolute()
    result.put("csv.folder", str(folder), "has more columns than AUDITOR's file, see auditord report utilisation")
    result.put("csv.name", f"{options.get('file_name', 'auditor')}_{{period}}.csv")


def _list_dropped(result: ConfigImport) -> None:
    for path, reason in _DROPPED.items():
        section, _, option = path.partition(".")
        if section in result.document and (not option or option in result.section(section)):
            result.dropped[path] = reason
    mail = result.section("email")
    if mail.get("enable_email_report"):
        result.dropped["email"] = _MAIL.format(host=mail.get("smtp_server"), port=mail.get("smtp_port"))
    unknown = [section for section in result.document if section not in _KNOWN]
    for section, options in _KNOWN.items():
        given: list[str] = list(result.section(section)) if options is not None else []
        unknown += [f"{section}.{option}" for option in given if option not in (options or ())]
    result.dropped |= dict.fromkeys(unknown, "unknown to AUDITOR's plugin, as far as we know: it ignored this")
