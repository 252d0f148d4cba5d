"""Propose a configuration: from a file of AUDITOR's HTCondor collector, or from the HTCondor on this host."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import OWN_LOG, OWN_STORE, ConfigImport, Document
from auditord_hookspecs.proposals import Answers, Host, Proposal, Question

_SPECIFIC: Final = frozenset({"schedd_names", "query_type", "state_db", "job_status", "history_file"})
_DROPPED: Final = {
    "addr": OWN_STORE,
    "port": "see addr",
    "timeout": "see addr; how long condor_history may take is query_timeout",
    "tls_config": "see addr",
    "state_db": "how far each schedd was read is in the daemon's state_dir",
    "query_type": "the program is never run through a shell: take out backslashes that were meant for one",
    "log_file": OWN_LOG,
    "one_shot": "auditord collect runs a collector once; AUDITOR ignored this in the file",
    "class_ads": "AUDITOR refuses it",
}
_KEPT: Final = ("record_prefix", "schedd_names", "pool", "job_status", "constraint", "history_file")
_TAKEN: Final = {*_KEPT, "interval", "earliest_datetime", "meta", "components"}
_ENTRY: Final = frozenset({"name", "key", "factor", "matches", "only_if"})
_DURATION: Final = re.compile("cpu|time|clock|wall", re.IGNORECASE)
_SITE: Final = "site"
_OWN_LABELS: Final = frozenset({"site_id", "user_id", "group_id"})


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a file of AUDITOR's HTCondor collector; None for any other file."""
    if not set(document) & _SPECIFIC or "sacct_frequency" in document or "prometheus_addr" in document:
        return None
    result = ConfigImport(document, "collectors.htcondor")
    result.put("kind", "htcondor")
    for name in _KEPT:
        if document.get(name):
            result.put(name, document[name])
    _import_times(result)
    _import_meta(result)
    if "components" in document:
        remark = "a job without one of the amounts goes to quarantine (AUDITOR dropped it); a score that is unknown is "
        remark += "left out (AUDITOR: 0)"
        result.put("components", [_component(result, entry) for entry in document["components"]], remark)
    return result.finished(_TAKEN, _DROPPED)


def _import_times(result: ConfigImport) -> None:
    result.put("interval", f"{result.document.get('interval', 900)}s")
    remark = "jobs that ended from here on, as with AUDITOR, but only in the first run of this instance"
    aware = re.search(r"(Z|[+-]\d\d:?\d\d)$", str(result.document.get("earliest_datetime")).strip())
    result.put_earliest("jobs that leave the queue", remark if aware else f"{remark}; was local time, is UTC now")


def _import_meta(result: ConfigImport) -> None:
    given = result.section("meta")
    rules: list[dict[str, Any]] = []  # Any: YAML
    for label, entries in given.items():
        listed: Sequence[Document] = [entries] if "key" in entries or "name" in entries else entries
        if label == _SITE:
            remark = "the name of the site, as site (AUDITOR's label) and site_id"
            result.put("sites", [_site(result, entry) for entry in listed], remark)
        elif label in _OWN_LABELS:
            _import_own(result, label, listed)
        else:
            rules += [_label(result, label, entry, number > 0) for number, entry in enumerate(listed)]
    result.put("meta", rules, "besides these: user_id, group_id (see user_keys, group_keys) and site_id")


def _import_own(result: ConfigImport, label: str, entries: Sequence[Document]) -> None:
    """Import labels that this collector sets itself, from plain attributes."""
    if label == "site_id":
        result.put("sites", [_site(result, entry) for entry in entries])
        return
    simple = [str(entry["key"]) for entry in entries if set(entry) <= {"name", "key"} and "key" in entry]
    if simple:
        result.put("user_keys" if label == "user_id" else "group_keys", simple)
    if len(simple) < len(entries):
        result.dropped[f"meta.{label}"] = "set by the collector, from attributes alone: see user_keys and group_keys"


def _site(result: ConfigImport, entry: Document) -> dict[str, Any]:  # Any: YAML
    result.drop(entry, _ENTRY, place="meta.site.")
    conditions = _conditions(entry)
    if "key" not in entry:
        constant = {"name": str(entry.get("factor", entry.get("name")))}
        return {**constant, **_only_if(conditions)}
    if _cuts_out(entry) or "matches" not in entry:
        matches = {"matches": entry["matches"]} if "matches" in entry else {}
        return {"key": entry["key"], **matches, **_only_if(conditions)}
    return {"name": entry["name"], **_only_if([_found(entry), *conditions])}


def _label(result: ConfigImport, label: str, entry: Document, append: bool) -> dict[str, Any]:  # noqa: FBT001 a field
    result.drop(entry, _ENTRY, place=f"meta.{label}.")
    appended = {"append": True} if append else {}
    conditions = _conditions(entry)
    if "key" not in entry:
        return {"name": label, "value": str(entry.get("factor", entry.get("name"))), **_only_if(conditions), **appended}
    if _cuts_out(entry) or "matches" not in entry:
        matches = {"matches": entry["matches"]} if "matches" in entry else {}
        read = {"key": entry["key"], "key_type": "String", **matches}
        return {"name": label, **read, **_only_if(conditions), **appended}
    return {"name": label, "value": entry["name"], **_only_if([_found(entry), *conditions]), **appended}


def _component(result: ConfigImport, entry: Document) -> dict[str, Any]:  # Any: YAML
    result.drop(entry, _ENTRY | {"scores"}, place="components.")
    scores = [_score(result, score) for score in entry.get("scores") or ()]
    made = {"name": entry["name"], **_only_if(_conditions(entry)), **({"scores": scores} if scores else {})}
    if "key" not in entry:
        return {**made, "value": int(entry["factor"])}
    matches = {"matches": entry["matches"]} if "matches" in entry else {}
    # Cut times to whole seconds, as AUDITOR does with every amount. Other amounts are whole numbers.
    kind = {"key_type": "Time"} if _DURATION.search(str(entry["key"])) else {}
    return {**made, "key": entry["key"], **matches, **kind}


def _score(result: ConfigImport, entry: Document) -> dict[str, Any]:  # Any: YAML
    result.drop(entry, _ENTRY, place="components.scores.")
    source = {name: entry[name] for name in ("key", "matches") if name in entry}
    return {"name": entry["name"], **(source or {"value": entry["factor"]}), **_only_if(_conditions(entry))}


def _cuts_out(entry: Document) -> bool:
    return "matches" in entry and re.compile(entry["matches"]).groups > 0


def _found(entry: Document) -> Document:
    """Translate AUDITOR's rule: an expression without a group gives the entry's name where it matches."""
    return {"key": entry["key"], "matches": entry["matches"]}


def _conditions(entry: Document) -> list[Document]:
    return [entry["only_if"]] if entry.get("only_if") else []


def _only_if(conditions: Sequence[Document]) -> dict[str, Any]:  # Any: YAML
    return {"only_if": conditions[0] if len(conditions) == 1 else list(conditions)} if conditions else {}


_ELEMENT: Final = "condor_ce_history"
_NAMES: Final = {_ELEMENT: "HTCondor-CE", "condor_history": "HTCondor"}
_COMMENTS: Final = {
    "condor_history": "Of a compute element.",
    "earliest_datetime": "Jobs that ended before this are left alone. The first run must reach them in the history.",
    "sites": "The first rule that holds names the site.",
    "meta": "What APEL asks of grid jobs, beside user_id and group_id.",
}
_GRID_META: Final = (
    {"name": "voms", "key": "x509UserProxyFirstFQAN", "key_type": "String"},
    {"name": "user_dn", "key": "x509userproxysubject", "key_type": "String"},
    {"name": "submit_host", "key": "GlobalJobId", "key_type": "String", "matches": r"^(.*)#\d+\.\d+#\d+$"},
)


def detect(host: Host) -> Proposal | None:
    """Propose a schedd, that of a compute element, or both, if this host can read its history."""
    programs = [name for name in _NAMES if host.run([name, "-limit", "1", "-af", "GlobalJobId"]) is not None]
    if not programs:
        return None
    both = len(programs) > 1
    question = Question("htcondor_history", f"Jobs of this history: {' or '.join(programs)}", programs[0])
    return Proposal(
        " and ".join(f"{_NAMES[name]}, by {name}" for name in programs),
        lambda answers: _options(answers, answers["htcondor_history"] if both else programs[0]),
        (question,) if both else (),
        _COMMENTS,
        gateway=programs == [_ELEMENT],
    )


def _options(answers: Answers, program: str) -> Mapping[str, Any]:
    if program not in _NAMES:
        raise ValueError(f"htcondor_history: '{program}' is neither condor_history nor {_ELEMENT}")
    element = {"condor_history": program, "meta": list(_GRID_META)} if program == _ELEMENT else {}
    return {
        **element,
        "earliest_datetime": f"{answers['since']}T00:00:00Z",
        "sites": [{"name": answers["site"]}],
    }
