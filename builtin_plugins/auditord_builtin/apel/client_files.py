"""From the files of an APEL client (``client.cfg``, ``parser.cfg``, ``sender.cfg`` of SSM) to options of the plugin.

Their options are those of the files that apel 2 and apel-ssm 3 ship in ``/etc/apel``. What the client reads of batch
systems' log files is the collectors' work here, and no option of theirs follows from these files.
"""

from collections.abc import Mapping
from configparser import RawConfigParser
from typing import Any, Final

from auditord_builtin.apel.config import BENCHMARKS
from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import OWN_LOG, UNKNOWN, ConfigImport, Document
from auditord_hookspecs.proposals import Host, Proposal

_UNKNOWN: Final = UNKNOWN.replace("AUDITOR", "the APEL client")
_NO_DATABASE: Final = "records are kept in auditord's own store (store.url); the client's database is not touched"
_COLLECTED: Final = "a collector asks the batch system itself: auditord init"
_BY_RECORD: Final = "records come with their scores"
_ALWAYS: Final = "the plugin reports what differs from what it reported last"
_BY_SITE: Final = "no counterpart: give jobs that are not to be reported a site of their own in the collector (sites)"
_DROPPED: Final[Mapping[str, Mapping[str, str]]] = {
    "db": dict.fromkeys(("backend", "hostname", "port", "name", "username", "password"), _NO_DATABASE),
    "spec_updater": {
        **dict.fromkeys(("enabled", "ldap_host", "ldap_port", "manual_spec1"), _BY_RECORD),
        "site_name": "it is empty: set plugins.apel.site.sites_to_report",
        "lrms_server": "give jobs without a CE a label submit_host in the collector (meta)",
        "spec_value": "set it as the score of Cores in the collector (components)",
        "spec_type": "see benchmarks",
    },
    "joiner": {
        "enabled": "a record has all labels from the start",
        "local_jobs": "see summary_fields, or individual_job_fields",
    },
    "unloader": {
        **dict.fromkeys(("enabled", "dir_location", "interval", "gap_start", "gap_end"), _ALWAYS),
        **dict.fromkeys(("include_vos", "exclude_vos"), _BY_SITE),
        "send_ur": "messages are APEL's own text",
        "type": "see message_type",
    },
    "ssm": {"enabled": "it sends what it makes"},
    "logging": dict.fromkeys(("logfile", "console"), OWN_LOG),
    "site_info": {
        "site_name": "it is empty: set plugins.apel.site.sites_to_report",
        "lrms_server": "give jobs without a CE a label submit_host in the collector (meta)",
    },
    "blah": dict.fromkeys(("enabled", "dir", "filename_prefix", "subdirs"), "grid users are labels of records (meta)"),
    "batch": {
        **dict.fromkeys(("enabled", "type", "dir", "filename_prefix", "subdirs"), _COLLECTED),
        "reparse": "auditord collect NAME --from DATE --replace",
        "parallel": "cores are always counted",
        "scale_host_factor": "a score may depend on the node: components, scores, only_if",
    },
    "sender": {"protocol": "APEL takes messages by AMS, which is what the plugin speaks"},
    "broker": {
        **dict.fromkeys(("port", "use_ssl"), "AMS has one port, with TLS"),
        **dict.fromkeys(("bdii", "network"), "name the broker: messaging.host"),
    },
    "certificates": {"server_cert": "messages are signed, and encrypted by TLS alone", "cadir": "see capath"},
    "messaging": {
        **dict.fromkeys(("path", "path_type"), "messages wait in the plugin's state"),
        "token": "it is empty",
    },
    "daemon": dict.fromkeys(("pidfile",), "the daemon is a service of systemd's"),
}
_CLIENT: Final = frozenset({"db", "spec_updater", "joiner", "unloader", "ssm", "logging"})
_PARSER: Final = frozenset({"db", "site_info", "blah", "batch", "logging"})
_SENDER: Final = frozenset({"sender", "broker", "certificates", "messaging", "logging", "daemon"})
_MESSAGING: Final = {
    ("broker", "host"): "host",
    ("certificates", "certificate"): "client_cert",
    ("certificates", "key"): "client_key",
    ("certificates", "capath"): "ca_path",
    ("messaging", "ams_project"): "project",
    ("messaging", "destination"): "topic",
    ("messaging", "token"): "token",
}
"""Options of ``messaging`` by section and option of ``sender.cfg``."""

_LABELS: Final = (
    "records need the labels voms, user_dn and submit_host; for HTCondor-CE: etc/examples/htcondor-ce-apel.yml"
)
_NO_LOCAL_JOBS: Final = (
    "the client sent grid jobs alone (local_jobs = false); here every record of the site is reported, one without voms "
    "for VO None: give local jobs a site of their own in the collector"
)
_SINCE: Final = (
    "publish_since is missing: set it to the first instant of the first month that this daemon is to publish, and let "
    "the client publish everything before"
)
_SITE: Final = "the name in GOCDB: the site ids that records have (sites of the collector)"
_VO: Final = {"type": "MetaField", "name": "voms", "function": {"name": "fqan_vo"}}
_HOST: Final = {"type": "MetaField", "name": "submit_host"}
_USER: Final = {"type": "MetaField", "name": "user_dn"}
_FQAN: Final = {"type": "MetaField", "name": "voms"}


def detect(host: Host) -> Proposal | None:
    """The files of an APEL client."""
    files = host.find("/etc/apel/client.cfg", "/etc/apel/parser.cfg", "/etc/apel/sender.cfg")
    return Proposal(f"APEL client, configured in {files[0].parent}", imports=files) if files else None


def import_client_file(document: Document) -> ImportedConfig | None:
    """Translate one of the three files, or None if it is none of them.

    Raises:
        ValueError: a value is none that the client takes.
    """
    for sections, telling, translate in (
        (_CLIENT, {"spec_updater", "unloader"}, _import_client),
        (_PARSER, {"site_info"}, _import_parser),
        (_SENDER, {"broker", "messaging"}, _import_sender),
    ):
        if telling <= set(document) <= sections and all(isinstance(each, Mapping) for each in document.values()):
            result = ConfigImport(document, "plugins.apel")
            result.put("kind", "apel")
            taken = translate(result)
            for name, given in result.document.items():
                known = [option for section, option in (*taken, ("logging", "level")) if section == name]
                result.drop(given, known, _DROPPED.get(name), place=f"{name}.", other=_UNKNOWN)
            if level := result.section("logging").get("level"):
                result.put_level(level)
            return result.result("the APEL client")
    return None


def _import_client(result: ConfigImport) -> set[tuple[str, str]]:
    taken = _import_site(result, "spec_updater") | _import_benchmark(result)
    unloader = result.section("unloader")
    summaries, withhold = (_is_true(unloader, option) for option in ("send_summaries", "withhold_dns"))
    result.put("message_type", "summaries" if summaries else "individual_jobs")
    result.remark("site", _SINCE)
    user: dict[str, Any] = {} if withhold else {"GlobalUserName": _USER}  # Any: YAML
    fields = "summary_fields" if summaries else "individual_job_fields"
    if summaries:
        result.put(fields, {"mandatory": {"VO": _VO, "SubmitHost": _HOST}, "optional": user})
    else:
        result.put(fields, {"optional": {"SubmitHost": _HOST, "FQAN": _FQAN, **user}})
    local = _is_true(result.section("joiner"), "local_jobs")
    result.remark(fields, _LABELS if local else f"{_LABELS}\n{_NO_LOCAL_JOBS}")
    return taken | {("unloader", "send_summaries"), ("unloader", "withhold_dns")}


def _import_parser(result: ConfigImport) -> set[tuple[str, str]]:
    return _import_site(result, "site_info")


def _import_sender(result: ConfigImport) -> set[tuple[str, str]]:
    if (protocol := result.section("sender").get("protocol", "AMS")).upper() != "AMS":
        result.remark("messaging", f"{protocol} is no more; name the host of APEL's AMS, msg.argo.grnet.gr")
    taken: set[tuple[str, str]] = set()
    for (section, option), ours in _MESSAGING.items():
        if value := result.section(section).get(option):
            result.put(f"messaging.{ours}", value)
            taken.add((section, option))
    if ("messaging", "token") in taken:
        result.remark("messaging.token", "better as a reference: file:/path, env:NAME or credential:name")
    return taken


def _import_site(result: ConfigImport, section: str) -> set[tuple[str, str]]:
    if not (name := result.section(section).get("site_name")):
        return set()
    result.put("site.sites_to_report", {name: [name]}, _SITE)
    return {(section, "site_name")}


def _import_benchmark(result: ConfigImport) -> set[tuple[str, str]]:
    """The benchmark of local jobs; the client takes those of grid jobs from the BDII."""
    given = result.section("spec_updater").get("spec_type")
    if not given:
        return set()
    if (known := BENCHMARKS.get(given.lower())) is None:
        raise ValueError(f"spec_updater.spec_type: '{given}' is none of {', '.join(BENCHMARKS)}")
    value = result.section("spec_updater").get("spec_value", "VALUE")
    remark = f"give Cores of the collector scores: [{{name: {given}, value: {value}}}]"
    result.put("benchmarks", [{"type": known, "score": given, "component": "Cores"}], remark)
    return {("spec_updater", "spec_type"), ("spec_updater", "spec_value")}


def _is_true(given: Document, option: str) -> bool:
    text = str(given.get(option, "false")).lower()
    if text not in RawConfigParser.BOOLEAN_STATES:
        raise ValueError(f"{option}: '{text}' is neither true nor false")
    return RawConfigParser.BOOLEAN_STATES[text]
