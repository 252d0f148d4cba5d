"""Propose a configuration: from a file of AUDITOR's Kubernetes collector, or from a reachable cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import OWN_QUEUE, OWN_STORE, ConfigImport, Document
from auditord_hookspecs.proposals import Answers, Host, Proposal, Question

_SPECIFIC: Final = frozenset({"prometheus_addr", "prometheus_port", "merge_interval", "collect_interval"})
_DROPPED: Final = {
    "auditor_addr": OWN_STORE,
    "auditor_port": "see auditor_addr",
    "auditor_timeout": "see auditor_addr",
    "tls_config": "see auditor_addr",
    "merge_interval": "figures are asked for in each run",
    "database_path": OWN_QUEUE,
}
_TAKEN: Final = {
    *("collect_interval", "prometheus_addr", "prometheus_port", "prometheus_timeout", "backlog_interval"),
    *("backlog_maxretries", "record_prefix", "earliest_datetime", "job_filter"),
}
_ENDS: Final = (
    "all ends count: AUDITOR left out pods that were deleted between two looks, and those whose containers lost their "
    "times (evictions); [Succeeded, Failed] leaves out the deleted ones"
)
_COMPONENTS: Final = (
    "AUDITOR's four. naive_cpu_time counts init containers and earlier runs of restarted containers as well (AUDITOR: "
    "the last run, no init containers), memory_limit is what the scheduler sets aside; quantities such as 0.5 count, "
    "and a missing limit of one kind leaves the other. Without this line there are requests and GPUs, too"
)
_SITES: Final = "AUDITOR's records had no site: name yours, or reports per site call it NOT_CONFIGURED"
_META: Final = "AUDITOR's records had no group: this makes the namespace their group_id; [] leaves it out"
_PROMETHEUS: Final = (
    "https, a path prefix and a token are possible here; component cpu is the highest value of the pod's counter "
    "(AUDITOR extrapolated its increase); cpu_query takes another question"
)


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a file of AUDITOR's Kubernetes collector; None for any other file."""
    if not set(document) & _SPECIFIC or "sacct_frequency" in document:
        return None
    result = ConfigImport(document, "collectors.kubernetes")
    result.put("kind", "kubernetes")
    result.put("record_prefix", document.get("record_prefix", ""), "ids are AUDITOR's, so nothing is counted twice")
    frequency = f"{document.get('collect_interval', 60)}s"
    result.put("interval", frequency, "a run asks only for events since the last one, so 30s costs little")
    result.put_earliest("pods that end", "only in the first run of this instance; later ones go on from there")
    _import_filter(result)
    # AUDITOR's components and labels, which its file does not name.
    result.put("components", "auditor", _COMPONENTS)
    result.put("sites", [{"name": "NOT_CONFIGURED"}], _SITES)
    result.put("meta", [{"name": "group_id", "key": "namespace", "key_type": "String"}], _META)
    _import_prometheus(result)
    return result.finished(_TAKEN, _DROPPED)


def _import_filter(result: ConfigImport) -> None:
    given = result.section("job_filter")
    remark = "" if "namespace" in given else "AUDITOR's default; an empty list is all namespaces"
    result.put("job_filter.namespace", given.get("namespace", ["default"]), remark)
    result.put("job_filter.status", [], _ENDS)
    if given.get("labels"):
        result.put("job_filter.labels", given["labels"])
    ignored = "AUDITOR ignored it; ours knows Succeeded, Failed and Deleted"
    result.drop(given, {"namespace", "labels"}, {"status": ignored}, place="job_filter.")


def _import_prometheus(result: ConfigImport) -> None:
    document = result.document
    if "prometheus_addr" not in document:
        return
    host, port = document["prometheus_addr"], document.get("prometheus_port", 9090)
    result.put("prometheus.url", f"http://{host}:{port}", _PROMETHEUS)
    result.put("prometheus.timeout", f"{document.get('prometheus_timeout', 60)}s")
    result.put("prometheus.pause", f"{document.get('backlog_interval', 300)}s")
    attempts = int(document.get("backlog_maxretries", 2)) + 1
    result.put("prometheus.attempts", attempts, "AUDITOR counts retries, this counts the first attempt as well")


_FILES: Final = ("/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml")
_COMMENTS: Final = {
    "kubeconfig": "The daemon's user must be able to read it; get, list and watch of pods is all that it needs.",
    "earliest_datetime": "Pods that ended before this are left alone.",
    "sites": "The first rule that holds names the site.",
}


def detect(host: Host) -> Proposal | None:
    """Propose the cluster of this pod's service account, or of a kubeconfig."""
    if "KUBERNETES_SERVICE_HOST" in host.environ:
        return _proposal("the Kubernetes cluster of this pod", None)
    for file in host.find(*_named(host.environ), *_FILES):
        return _proposal(f"Kubernetes, by {file}", file)
    return None


def _named(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the first existing file of those that kubectl would read."""
    home = f"{environ['HOME']}/.kube/config" if "HOME" in environ else ""
    return [name for name in environ.get("KUBECONFIG", home).split(":") if name.startswith("/")]


def _proposal(found: str, kubeconfig: Path | None) -> Proposal:
    def options(answers: Answers) -> Mapping[str, Any]:
        names = [name for part in answers["namespaces"].split(",") if (name := part.strip())]
        return {
            **({} if kubeconfig is None else {"kubeconfig": str(kubeconfig)}),
            "earliest_datetime": f"{answers['since']}T00:00:00Z",
            **({"job_filter": {"namespace": names}} if names else {}),
            "sites": [{"name": answers["site"]}],
            **({"prometheus": {"url": answers["prometheus"]}} if answers["prometheus"] else {}),
        }

    questions = (
        Question("namespaces", "Namespaces whose pods count, separated by commas (nothing: all)"),
        Question("prometheus", "URL of a Prometheus that knows CPU time and memory of pods (nothing: none)"),
    )
    return Proposal(found, options, questions, _COMMENTS)
