"""Import the configuration of AUDITOR's APEL plugin, and the files of an APEL client."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from configparser import RawConfigParser
from typing import Any, Final, NamedTuple

from auditord_builtin.apel.config import (
    BENCHMARKS,
    MandatoryJobFields,
    MandatorySummaryFields,
    OptionalJobFields,
    OptionalSummaryFields,
)
from auditord_hookspecs import ImportedConfig, Section
from auditord_hookspecs.config_import import OWN_LOG, UNKNOWN, ConfigImport, Document, instant
from auditord_hookspecs.proposals import Host, Proposal

_UNKNOWN: Final = UNKNOWN.replace("AUDITOR", "the APEL client")
_NO_DATABASE: Final = "records are kept in auditord's own store (store.url); the client's database is not touched"
_COLLECTED: Final = "a collector queries the batch system itself: auditord init"
_BY_RECORD: Final = "each record has its own scores"
_ALWAYS: Final = "the plugin reports the difference from its last report"
_BY_SITE: Final = "no counterpart: in the collector (sites), assign jobs that should not be reported to another site"
_CLIENT_DROPPED: Final[Mapping[str, Mapping[str, str]]] = {
    "db": dict.fromkeys(("backend", "hostname", "port", "name", "username", "password"), _NO_DATABASE),
    "spec_updater": {
        **dict.fromkeys(("enabled", "ldap_host", "ldap_port"), _BY_RECORD),
        "site_name": "this is empty: set plugins.apel.site.sites_to_report",
        "lrms_server": "in the collector (meta), give jobs without a CE the label submit_host",
        "spec_value": "this is no score without a spec_type",
        "spec_type": "this is empty",
    },
    "joiner": {
        "enabled": "records need no joining: the collector sets all their labels",
        "local_jobs": "see summary_fields, or individual_job_fields",
    },
    "unloader": {
        **dict.fromkeys(("enabled", "dir_location", "interval", "gap_start", "gap_end"), _ALWAYS),
        **dict.fromkeys(("include_vos", "exclude_vos"), _BY_SITE),
        "send_ur": "messages are in APEL's text format",
        "dict_benchmark_type": "messages name the benchmark of each row: see summary_message and benchmarks",
        "type": "see message_type",
    },
    "ssm": {"enabled": "the plugin sends its messages itself"},
    "logging": dict.fromkeys(("logfile", "console"), OWN_LOG),
    "site_info": {
        "site_name": "this is empty: set plugins.apel.site.sites_to_report",
        "lrms_server": "in the collector (meta), give jobs without a CE the label submit_host",
    },
    "blah": dict.fromkeys(("enabled", "dir", "filename_prefix", "subdirs"), "grid users are labels of records (meta)"),
    "batch": {
        **dict.fromkeys(("enabled", "type", "dir", "filename_prefix", "subdirs"), _COLLECTED),
        "reparse": "auditord collect NAME --from DATE --replace",
        "parallel": "cores are always counted",
        "scale_host_factor": "scores can depend on the node: see components, scores, only_if",
    },
    "sender": {"protocol": "the plugin uses AMS, the protocol that APEL accepts"},
    "broker": {
        **dict.fromkeys(("port", "use_ssl"), "AMS uses one port, with TLS"),
        **dict.fromkeys(("bdii", "network"), "set the broker in messaging.host"),
    },
    "certificates": {"server_cert": "messages are signed; only TLS encrypts them", "cadir": "see capath"},
    "messaging": {
        **dict.fromkeys(("path", "path_type"), "the plugin's state holds the waiting messages"),
        "token": "this is empty",
    },
    "daemon": dict.fromkeys(("pidfile",), "systemd manages the daemon"),
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
"""The options of ``messaging``, by section and option of ``sender.cfg``."""

_SLURM: Final = "slurm"
_COMMENT: Final = "Comment"
_GUIDE: Final = "auditord manual apel-slurm"
_LABELS: Final = (
    "records need the labels voms, user_dn and submit_host; for HTCondor-CE, see etc/examples/htcondor-ce-apel.yml"
)
_SLURM_LABELS: Final = (
    f"the labels voms, user_dn and submit_host come from the comment that the CE gives to each job: {_GUIDE}"
)
_EARLIEST: Final = (
    "earliest_datetime is missing: set it to the instant of plugins.apel.site.publish_since, or the first month lacks "
    "jobs. These sites, meta and components replace those of an earlier file"
)
_GRID_JOBS: Final = (
    "the client sent only grid jobs (local_jobs = false). Users can write comments, too, so it is better to recognise "
    f"the jobs of the CE by the Group or Account of its users: {_GUIDE}"
)
_NO_SPEC: Final = (
    "without a score, no job can be reported: add to Cores: scores: [{name: HEPscore23, value: VALUE}], or import "
    "client.cfg in the same call if it has a manual_spec1"
)
_SCORED: Final = "the benchmarks of client.cfg, per core; values that the client took from the BDII are not among them"
_OTHER_COMPONENTS: Final = (
    {"name": "Memory", "key": "AllocTRES", "sub_key": "mem", "key_type": "IntegerMega", "optional": True},
    {"name": "TotalCPU", "key": "TotalCPU", "key_type": "Time", "optional": True},
    {"name": "GPU", "key": "AllocTRES", "sub_key": "gres/gpu", "optional": True},
)
_OTHER_LABELS: Final = tuple(
    {"name": name, "key": name.title(), "key_type": "String"} for name in ("account", "partition")
)
_NO_LOCAL_JOBS: Final = (
    "the client sent only grid jobs (local_jobs = false). Here every record of the site is reported, those without "
    "voms for VO None: assign local jobs to another site in the collector"
)
_SINCE: Final = (
    "publish_since is missing: set it to the first instant of the first month that this daemon will publish; the "
    "client publishes all earlier months\n"
    "ce is missing, so messages call the CE UNKNOWN: set it, for example, to HTCONDOR-CE or ARC"
)
_SITE: Final = "the site's name in GOCDB, and its site ids in records (see sites of the collector)"
_VO: Final = {"type": "MetaField", "name": "voms", "function": {"name": "fqan_vo"}}
_GROUP: Final = {"type": "MetaField", "name": "voms", "function": {"name": "fqan_group"}}
_ROLE: Final = {"type": "MetaField", "name": "voms", "function": {"name": "fqan_role"}}
_HOST: Final = {"type": "MetaField", "name": "submit_host"}
_USER: Final = {"type": "MetaField", "name": "user_dn"}
_FQAN: Final = {"type": "MetaField", "name": "voms"}


def detect(host: Host) -> Proposal | None:
    """Propose to import the files of an APEL client on this host."""
    files = host.find("/etc/apel/client.cfg", "/etc/apel/parser.cfg", "/etc/apel/sender.cfg")
    return Proposal(f"APEL client, configured in {files[0].parent}", imports=files) if files else None


def import_client_file(document: Document, others: Sequence[Document]) -> ImportedConfig | None:
    """Translate one of the client's three files, or return None for any other file.

    Args:
        document: the file, option by option in its sections.
        others: the other files that are imported. ``client.cfg`` has the benchmarks, ``parser.cfg`` the batch system.

    Raises:
        ValueError: the client would refuse a value.
    """
    for sections, telling, translate in (
        (_CLIENT, {"spec_updater", "unloader"}, _import_client),
        (_PARSER, {"site_info"}, _import_parser),
        (_SENDER, {"broker", "messaging"}, _import_sender),
    ):
        if telling <= set(document) <= sections and all(isinstance(each, Mapping) for each in document.values()):
            result = ConfigImport(document, "plugins.apel")
            result.put("kind", "apel")
            files = {name: each for file in (*others, document) for name, each in file.items()}
            used = translate(result, files)
            for name, given in result.document.items():
                known = [option for section, option in (*used, ("logging", "level")) if section == name]
                result.drop(given, known, _CLIENT_DROPPED.get(name), place=f"{name}.", other=_UNKNOWN)
            if level := result.section("logging").get("level"):
                result.put_level(level)
            return result.result("the APEL client")
    return None


def _import_client(result: ConfigImport, files: Document) -> set[tuple[str, str]]:
    is_slurm = _batch_system(files) == _SLURM
    used = _import_site(result, "spec_updater") | {("unloader", "send_summaries"), ("unloader", "withhold_dns")}
    specs = _read_specs(result.section("spec_updater"))
    if specs:  # benchmarks of CEs, and of local jobs; others are in the BDII
        named = sorted({spec.type for spec in specs}, key=lambda name: [*BENCHMARKS].index(name.lower()))
        benchmarks = [{"type": BENCHMARKS[name.lower()], "score": name, "component": "Cores"} for name in named]
        scores = ", ".join(
            f"{{name: {spec.type}, value: {spec.value}}}" + (f" for {spec.host}" if spec.host else "") for spec in specs
        )
        remark = f"in the collector, add to Cores: scores: [{scores}]{_tell_queues(specs)}"
        result.put("benchmarks", benchmarks, f"see collectors.{_SLURM}.components" if is_slurm else remark)
        options = ("spec_type", "spec_value", *(f"manual_spec{number + 1}" for number in range(len(specs))))
        used |= {("spec_updater", option) for option in options}
    unloader = result.section("unloader")
    summaries, withhold = (_is_true(unloader, option) for option in ("send_summaries", "withhold_dns"))
    result.put("message_type", "summaries" if summaries else "individual_jobs")
    result.remark("site", _SINCE)
    user: dict[str, Any] = {} if withhold else {"GlobalUserName": _USER}  # Any: YAML
    fields = "summary_fields" if summaries else "individual_job_fields"
    if summaries:
        optional = {**user, "VOGroup": _GROUP, "VORole": _ROLE}
        result.put(fields, {"mandatory": {"VO": _VO, "SubmitHost": _HOST}, "optional": optional})
    else:
        result.put(fields, {"optional": {"SubmitHost": _HOST, "FQAN": _FQAN, **user}})
    local = _is_true(result.section("joiner"), "local_jobs")
    labels = _SLURM_LABELS if is_slurm else _LABELS
    result.remark(fields, labels if local or is_slurm else f"{labels}\n{_NO_LOCAL_JOBS}")
    return used


def _import_parser(result: ConfigImport, files: Document) -> set[tuple[str, str]]:
    used = _import_site(result, "site_info")
    system = _batch_system(files)
    if system:
        result.put("site.batch_system", system)
        used.add(("batch", "type"))
    if system != _SLURM:
        return used
    # Propose a collector that takes VO, user and CE from the comments of jobs, and the benchmarks of the client.
    collector, site = ConfigImport({}, f"collectors.{_SLURM}"), result.section("site_info")
    collector.put("kind", _SLURM)
    collector.remark("", _EARLIEST)
    has_local_jobs = _is_true(files.get("joiner", {}), "local_jobs")
    labels = {"name": "voms", "key": _COMMENT, "key_type": "Json"}
    if has_local_jobs and (server := site.get("lrms_server")):
        labels = {"name": "submit_host", "key": _COMMENT, "key_type": "Json", "default_value": server}
    if (name := site.get("site_name")) and has_local_jobs:
        collector.put("sites", [{"name": name}])
    elif name:
        grid = {"name": name, "only_if": {"key": _COMMENT, "matches": "voms"}}
        collector.put("sites", [grid, {"name": "local"}], _GRID_JOBS)
    collector.put("meta", [labels, *_OTHER_LABELS], _SLURM_LABELS)
    specs = _read_specs(files.get("spec_updater", {}))
    scores = _make_scores(specs)
    cores = {"name": "Cores", "key": "NCPUS", **({"scores": scores} if scores else {})}
    collector.put("components", [cores, *_OTHER_COMPONENTS], f"{_SCORED}{_tell_queues(specs)}" if scores else _NO_SPEC)
    result.include(collector)
    return used


def _batch_system(files: Document) -> str:
    return str(files.get("batch", {}).get("type", "")).lower()


def _import_sender(result: ConfigImport, _files: Document) -> set[tuple[str, str]]:
    if (protocol := result.section("sender").get("protocol", "AMS")).upper() != "AMS":
        result.remark("messaging", f"APEL no longer accepts {protocol}; set the host of its AMS, msg.argo.grnet.gr")
    used: set[tuple[str, str]] = set()
    for (section, option), ours in _MESSAGING.items():
        if value := result.section(section).get(option):
            result.put(f"messaging.{ours}", value)
            used.add((section, option))
    if ("messaging", "token") in used:
        result.remark("messaging.token", "better as a reference: file:/path, env:NAME or credential:name")
    return used


def _import_site(result: ConfigImport, section: str) -> set[tuple[str, str]]:
    if not (name := result.section(section).get("site_name")):
        return set()
    result.put("site.sites_to_report", {name: [name]}, _SITE)
    return {(section, "site_name")}


class _Spec(NamedTuple):
    """A benchmark of the jobs of a CE; of local jobs if ``host`` is empty."""

    host: str
    type: str
    value: str


def _read_specs(updater: Document) -> list[_Spec]:
    """Return the benchmarks in ``client.cfg``. As in the client, a gap in the numbers of ``manual_spec`` is the end.

    Raises:
        ValueError: the client would refuse one.
    """
    specs: list[_Spec] = []
    while given := updater.get(option := f"manual_spec{len(specs) + 1}"):
        element, _, rest = given.partition(",")
        name, _, value = (part.strip() for part in rest.partition(","))
        specs.append(_Spec(re.split("[:/]", element.strip())[0], name, _check_spec(option, name, value)))
    if name := updater.get("spec_type"):
        specs.append(_Spec("", name, _check_spec("spec_type", name, updater.get("spec_value") or "VALUE")))
    return specs


def _check_spec(option: str, name: str, value: str) -> str:
    if name.lower() not in BENCHMARKS:
        raise ValueError(f"spec_updater.{option}: '{name}' is not one of {', '.join(BENCHMARKS)}")
    if value != "VALUE" and not re.fullmatch(r"\d+(\.\d+)?", value):
        raise ValueError(f"spec_updater.{option}: '{value}' is not a number, as in ce.example.org,HEPscore23,12.4")
    return value


def _make_scores(specs: Sequence[_Spec]) -> list[dict[str, Any]]:  # Any: YAML
    """Return the rules for scores. If the CEs differ, a rule recognises its CE by the comments of its jobs."""
    given = [spec for spec in specs if spec.value != "VALUE"]
    names = {spec.host: rf"(?<![\w.-]){re.escape(spec.host)}(?![\w.-])" for spec in given if spec.host}
    rules: list[dict[str, Any]] = []  # Any: YAML
    for spec in given:
        matches = names.get(spec.host, f"^(?!.*({'|'.join(names.values())}))")
        only = {} if len({spec[1:] for spec in given}) == 1 else {"only_if": {"key": _COMMENT, "matches": matches}}
        rule = {"name": spec.type, "value": float(spec.value), **only}
        rules += [] if rule in rules else [rule]
    return rules


def _tell_queues(specs: Sequence[_Spec]) -> str:
    """Return a remark on CEs whose queues have different benchmarks, since comments do not name the queue."""
    hosts = Counter(host for host, *_ in dict.fromkeys(specs) if host)
    several = [host for host, count in hosts.items() if count > 1]
    if not several:
        return ""
    return (
        f"\nthe queues of {', '.join(several)} have different benchmarks, which these rules do not tell apart: give "
        "them an only_if with the queue instead (Slurm: {key: Partition, matches: '^long$'})"
    )


def _is_true(given: Document, option: str) -> bool:
    text = str(given.get(option, "false")).lower()
    if text not in RawConfigParser.BOOLEAN_STATES:
        raise ValueError(f"{option}: '{text}' is neither true nor false")
    return RawConfigParser.BOOLEAN_STATES[text]


_SECTIONS: Final = frozenset({"plugin", "site", "auditor", "messaging", "authentication"})
_FIELDS: Final = frozenset({"summary_fields", "individual_job_fields"})
_MILLISECONDS: Final = 1000
_HERE: Final = (
    "the plugin reads this daemon's own records; to keep reading another server, give the instance "
    "source: {url: …}, and restore divide_by: 1000 if that server stores milliseconds"
)
_DROPPED: Final[Mapping[str, Mapping[str, str]]] = {
    "plugin": {
        "log_file": OWN_LOG,
        "time_json_path": "the plugin keeps its own state of published jobs; see site.publish_since",
    },
    "messaging": dict.fromkeys(("timeout", "retry"), "a request may take 30 s, and is repeated three times"),
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
    "publish_since is missing: set it to the first instant of the first month that this daemon will publish; AUDITOR's "
    "plugin has published all earlier months"
)
_CE: Final = (
    "InfrastructureDescription is AUDITORD-CE-BATCHSYSTEM, without the version that AUDITOR adds; the batch system "
    "comes from the label collector_type, as with AUDITOR, unless batch_system is set"
)
_ZERO_LENGTH: Final = (
    "AUDITOR's plugin leaves out jobs that ran for less than a second, and so does this option; without it they are "
    "counted"
)


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a file of AUDITOR's APEL plugin, or return None for any other file.

    Raises:
        ValueError: a field is of a type that AUDITOR does not have.
    """
    if not set(document) & _FIELDS or not set(document) & {"site", "messaging", "authentication"}:
        return None
    result = ConfigImport(document, "plugins.apel")
    options = {"kind": "apel", **_take(result, "plugin", ("log_level", "report_interval", "message_type"))}
    if "log_level" in options:
        result.put_level(options.pop("log_level"))
    if "report_interval" in options:
        options["interval"] = f"{options.pop('report_interval')}s"
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
    options |= {**made, "site": {**site, "zero_length_jobs": False}}
    messaging = _take(result, "messaging", ("host", "port", "client_cert", "client_key", "project", "topic"))
    older = ("auth_url", "ams_url", "client_cert", "client_key", "ca_path", "verify_ca")
    messaging |= _take(result, "authentication", older)
    if "ams_url" in messaging:
        messaging["ams_url"] = str(messaging["ams_url"]).removesuffix("?key=")
    options["messaging"] = messaging
    options |= _take_fields(result, "summary_fields", MandatorySummaryFields, OptionalSummaryFields)
    options |= _take_fields(result, "individual_job_fields", MandatoryJobFields, OptionalJobFields)
    for name, value in options.items():
        result.put(name, value)
    result.drop(document, {*_SECTIONS, *_FIELDS, "type"})
    return result.result()


def _take(result: ConfigImport, section: str, names: Sequence[str]) -> dict[str, Any]:  # Any: YAML
    """Return the options of a section that mean the same here, and drop the others."""
    given = result.section(section)
    result.drop(given, {*names, "type"}, _DROPPED.get(section), place=f"{section}.")
    return {name: given[name] for name in names if given.get(name) is not None}


def _take_fields(result: ConfigImport, name: str, mandatory: type[Section], optional: type[Section]) -> dict[str, Any]:
    """Return the field sections, with each field in the section where auditord has it."""
    given = result.section(name)
    both: dict[str, Document] = {**(given.get("mandatory") or {}), **(given.get("optional") or {})}
    both.pop("type", None)
    made: dict[str, dict[str, Any]] = {}  # Any: YAML
    for label, source in both.items():
        ours = _RENAMED.get(label, label) if name == "summary_fields" else label
        models = {"mandatory": mandatory, "optional": optional}
        part = next((part for part, model in models.items() if ours in model.model_fields), None)
        if part is None:
            reason = "follows from the record" if ours in _FROM_RECORDS else "APEL does not know this field"
            result.dropped[f"{name}.{label}"] = reason
        else:
            made.setdefault(part, {})[ours] = _take_field(result, f"{name}.{part}.{ours}", ours, source)
    return {name: made} if given else {}


def _take_field(result: ConfigImport, path: str, label: str, source: Document) -> dict[str, Any]:  # Any: YAML
    if "type" not in source:
        raise ValueError(f"{path} has no tag such as !MetaField")
    made: dict[str, Any] = {key: value for key, value in source.items() if value is not None}  # Any: YAML
    if label == "NormalisedCpuDuration" and made["type"] == "NormalisedField" and "base_value" not in made:
        made["base_value"] = {"type": "RecordField", "name": "runtime"}
        result.remark(path, "AUDITOR uses the runtime if base_value is missing; auditord would use CpuDuration")
    for inner in ("score", "base_value"):
        if inner in made:
            made[inner] = _take_field(result, f"{path}.{inner}", inner, made[inner])
    if "function" in made:
        function: Document = made["function"]
        made["function"] = {key: value for key, value in function.items() if key != "type"}
    if "function" in made and "regex" in made:
        del made["function"]
        result.remark(path, "function is left out: AUDITOR uses only regex if both are given")
    if label in _DURATIONS and made.get("divide_by") == _MILLISECONDS:
        del made["divide_by"]
        result.remark(
            path,
            "divide_by: 1000 is left out, since auditord's collectors write seconds of CPU time (AUDITOR's Slurm "
            "collector: milliseconds). For records from there: auditord import auditor --milliseconds "
            f"{made.get('name')}",
        )
    return made
