"""The options of a Kubernetes collector. Options that mean the same as AUDITOR's have AUDITOR's names.

They can be imported from a configuration file of AUDITOR's collector, or proposed for a reachable cluster.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field, field_validator, model_validator

from auditord_hookspecs import Duration, ImportedConfig, RunConfig, Secret, Section
from auditord_hookspecs.config_import import OWN_QUEUE, OWN_STORE, ConfigImport, Document
from auditord_hookspecs.mapping import (
    ComponentRule,
    KeyType,
    MetaRule,
    SiteRule,
    auditor_preset,
    remarks_on_fractions,
    remarks_on_sites,
)
from auditord_hookspecs.proposals import Answers, Host, Proposal, Question
from auditord_hookspecs.sources import ServerUrl, TlsFiles

AUDITOR_COMPONENTS: Final = (
    ComponentRule(name="naive_cpu_time", key="limits.cpu.time", key_type=KeyType.TIME, optional=True),
    ComponentRule(name="memory_limit", key="limits.memory", optional=True),
    ComponentRule(name="cpu", key="prometheus.cpu", optional=True),
    ComponentRule(name="memory", key="prometheus.memory", optional=True),
)
"""The components of AUDITOR's collector, in core-seconds, bytes, CPU seconds and bytes."""

_DEFAULT_COMPONENTS: Final = (
    ComponentRule(name="CoreSeconds", key="core_seconds", optional=True),
    ComponentRule(name="MemorySeconds", key="memory_seconds", optional=True),
    ComponentRule(name="GPUSeconds", key="gpu_seconds", optional=True),
    ComponentRule(name="TotalCPU", key="prometheus.cpu", optional=True),
    ComponentRule(name="MaxRSS", key="prometheus.memory", optional=True),
    ComponentRule(name="WaitTime", key="wait_time", optional=True),
)
"""Totals, in core-seconds, MiB times seconds, GPU-seconds and CPU seconds; a peak in bytes; seconds."""

_SERIES: Final = 'namespace="{namespace}",pod="{podname}"'
# A pod's counter starts at zero, so its highest value is the pod's usage. (AUDITOR queries the increase over the whole
# time at every instant.)
_CPU_QUERY: Final = f"sum(max_over_time(pod_cpu_usage_seconds_total{{{_SERIES}}}[{{seconds}}s]))"
_MEMORY_QUERY: Final = f"sum(max_over_time(pod_memory_working_set_bytes{{{_SERIES}}}[{{seconds}}s]))"


Components = Annotated[tuple[ComponentRule, ...], auditor_preset(AUDITOR_COMPONENTS)]
NamespaceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
PodEnd = Literal["Succeeded", "Failed", "Deleted"]


class JobFilter(Section):
    """Selects the pods that become records."""

    namespace: tuple[NamespaceName, ...] = Field(
        default=(), description="The namespaces to collect; empty: all (needs a ClusterRole)."
    )
    labels: tuple[str, ...] = Field(
        default=(), description="Label selectors, which must all match, such as app==batch."
    )
    status: tuple[PodEnd, ...] = Field(default=(), description="Succeeded, Failed, Deleted; empty: all.")

    @field_validator("namespace")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("name each namespace once")
        return names


class GpuRule(Section):
    """A resource, or devices of ResourceClaims by device class or driver, and the number of GPUs that each of them is.

    A device class also stands for its extended resource, ``deviceclass.resource.kubernetes.io/CLASS``.
    """

    resource: re.Pattern[str] | None = None
    device_class: re.Pattern[str] | None = None
    driver: re.Pattern[str] | None = None
    factor: Annotated[Decimal, Field(gt=0)] = Decimal(1)

    @model_validator(mode="after")
    def _one_name(self) -> "GpuRule":
        if [self.resource, self.device_class, self.driver].count(None) != 2:  # noqa: PLR2004 two of the three
            raise ValueError("give one of resource, device_class and driver")
        return self


_GPUS: Final = (
    GpuRule(resource=re.compile(r"^(nvidia\.com/(gpu|mig-.*)|amd\.com/gpu|gpu\.intel\.com/(i915|xe))$")),
    GpuRule(device_class=re.compile(r"^((gpu|mig)\.nvidia\.com|gpu\.(amd|intel)\.com)$")),
    GpuRule(driver=re.compile(r"^gpu\.(nvidia|amd|intel)\.com$")),
)
_CLASS_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"


class Prometheus(Section):
    """A Prometheus server with the CPU time and peak memory of pods. Records wait for these for a while."""

    url: ServerUrl = Field(description="The URL, with its path prefix if it has one: https://host:9090/prefix.")
    tls: TlsFiles = Field(default_factory=TlsFiles, description="CA and client certificate for https.")
    token: Secret | None = Field(default=None, description="The bearer token, as a reference to a secret.")
    timeout: Duration = Field(default=timedelta(seconds=10), gt=timedelta(0), description="The time limit of a query.")
    patience: Duration = Field(
        default=timedelta(hours=6),
        description="After this long without an answer the record is sent without the values.",
    )
    cpu_query: str = Field(default=_CPU_QUERY, description="A query that returns one value: CPU seconds.")
    memory_query: str = Field(default=_MEMORY_QUERY, description="A query that returns one value: bytes.")


class KubernetesConfig(RunConfig):
    """Pods of a Kubernetes cluster, listed once and then watched."""

    record_prefix: str = Field(
        default="", description="A record's id is <record_prefix>-<namespace>-<podname>-<uid>; empty as with AUDITOR."
    )
    earliest_datetime: AwareDatetime | None = Field(
        default=None, description="The first run accounts for pods that ended since this time; default: now."
    )
    kubeconfig: Path | None = Field(
        default=None, description="A kubeconfig; default: the pod's service account, else ~/.kube/config."
    )
    kube_context: str | None = Field(default=None, description="A context of the kubeconfig; default: the current one.")
    job_filter: JobFilter = Field(default=JobFilter(), description="The pods that make records.")
    open_records: bool = Field(
        default=False, description="Also make open records of running pods, without a stop time."
    )
    sites: tuple[SiteRule, ...] = Field(default=(SiteRule(name="NOT_CONFIGURED"),), min_length=1)
    meta: tuple[MetaRule, ...] = Field(
        default=(MetaRule(name="group_id", key="namespace", key_type=KeyType.STRING),),
        description="Labels besides podname, namespace, status and site_id. Default: the namespace as group_id.",
    )
    components: Components = Field(
        default=_DEFAULT_COMPONENTS,
        description="Default: what the pod held (CoreSeconds, MemorySeconds, GPUSeconds), TotalCPU and MaxRSS from "
        "Prometheus, WaitTime. auditor: the components of AUDITOR's collector.",
    )
    held_while: Literal["reserved", "running"] = Field(
        default="reserved",
        description="A pod holds its resources from its scheduling to its end (reserved), or while its containers run "
        "(running).",
    )
    gpus: tuple[GpuRule, ...] = Field(
        default=_GPUS, description="What counts as GPUs. The first rule that matches a resource or device counts."
    )
    prometheus: Prometheus | None = Field(default=None, description="Query a Prometheus for CPU time and memory.")
    watch_for: Duration = Field(
        default=timedelta(seconds=25), gt=timedelta(0), description="A run ends at the latest after this long."
    )

    @cached_property
    def never_zero(self) -> frozenset[str]:
        """The names of components for which zero means that Prometheus never saw the pod running."""
        return frozenset(rule.name for rule in self.components if (rule.key or "").startswith("prometheus."))

    def gpus_per_unit(self, resource: str) -> Decimal:
        """Return the number of GPUs that one unit of a resource is."""
        name = resource.removeprefix(_CLASS_RESOURCE)
        device_class = name if name != resource else None
        return self._factor(resource=resource, device_class=device_class)

    def gpus_per_device(self, device_class: str, driver: str) -> Decimal:
        """Return the number of GPUs that a device of a ResourceClaim is."""
        return self._factor(device_class=device_class, driver=driver)

    def _factor(self, **names: str | None) -> Decimal:
        for rule in self.gpus:
            patterns = {"resource": rule.resource, "device_class": rule.device_class, "driver": rule.driver}
            for kind, pattern in patterns.items():
                if pattern is not None and (name := names.get(kind)) and pattern.search(name):
                    return rule.factor
        return Decimal(0)

    @property
    def selector(self) -> str:
        """The label selectors in the API server's syntax."""
        return ",".join(self.job_filter.labels)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The namespaces to list and watch; ``*`` stands for all namespaces in one request."""
        return self.job_filter.namespace or ("*",)

    @model_validator(mode="after")
    def _context_of_a_file(self) -> "KubernetesConfig":
        if self.kube_context is not None and self.kubeconfig is None:
            raise ValueError("kube_context needs kubeconfig: set it to the file with this context")
        return self


CORES: Final = frozenset({"limits.cpu", "requests.cpu"})
GPUS: Final = "gpu"


_TOTALS: Final = {
    **dict.fromkeys(CORES, "{name: CoreSeconds, key: core_seconds}"),
    GPUS: "{name: GPUSeconds, key: gpu_seconds}",
}


def find_remarks(config: KubernetesConfig) -> list[str]:
    """Return remarks on missing sites, and on rules that round fractions of cores or GPUs away."""
    fractions = {*CORES, GPUS} if any(rule.factor % 1 for rule in config.gpus) else CORES
    return [*remarks_on_sites(config.sites), *remarks_on_fractions(config.components, fractions, _TOTALS)]


_SPECIFIC: Final = frozenset({"prometheus_addr", "prometheus_port", "merge_interval", "collect_interval"})
_DROPPED: Final = {
    "auditor_addr": OWN_STORE,
    "auditor_port": "see auditor_addr",
    "auditor_timeout": "see auditor_addr",
    "tls_config": "see auditor_addr",
    "merge_interval": "metrics are queried in each run",
    "database_path": OWN_QUEUE,
    "backlog_interval": "Prometheus is asked every five minutes",
    "backlog_maxretries": "Prometheus is asked three times; while it does not answer, records wait for up to "
    "prometheus.patience",
}
_TAKEN: Final = {
    *("collect_interval", "prometheus_addr", "prometheus_port", "prometheus_timeout"),
    *("record_prefix", "earliest_datetime", "job_filter"),
}
_ENDS: Final = (
    "all ends count: AUDITOR left out pods that were deleted between two of its polls, and those whose containers lost "
    "their times (evictions); [Succeeded, Failed] leaves out the deleted ones"
)
_COMPONENTS: Final = (
    "AUDITOR's four. naive_cpu_time counts init containers and earlier runs of restarted containers as well (AUDITOR: "
    "the last run, no init containers), memory_limit is the amount that the scheduler reserves; quantities such as 0.5 "
    "count, and if one kind of limit is missing, the other remains. Reports of core, memory and GPU hours need the "
    "default instead: delete this line"
)
_SITES: Final = "AUDITOR's records had no site: name yours, or reports per site call it NOT_CONFIGURED"
_META: Final = "AUDITOR's records had no group: this makes the namespace their group_id; [] leaves it out"
_PROMETHEUS: Final = (
    "https, a path prefix and a token are possible here; component cpu is the highest value of the pod's counter "
    "(AUDITOR extrapolated its increase); cpu_query sets another query"
)


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a configuration file of AUDITOR's Kubernetes collector. Return None for any other file."""
    if not set(document) & _SPECIFIC or "sacct_frequency" in document:
        return None
    result = ConfigImport(document, "collectors.kubernetes")
    result.put("kind", "kubernetes")
    result.put("record_prefix", document.get("record_prefix", ""), "ids are AUDITOR's, so nothing is counted twice")
    frequency = f"{document.get('collect_interval', 60)}s"
    result.put("interval", frequency, "a run asks only for events since the last one, so 30s costs little")
    result.put_earliest("pods that end", "only in the first run of this instance; later runs continue from there")
    given = result.section("job_filter")
    remark = "" if "namespace" in given else "AUDITOR's default; an empty list is all namespaces"
    result.put("job_filter.namespace", given.get("namespace", ["default"]), remark)
    result.put("job_filter.status", [], _ENDS)
    if given.get("labels"):
        result.put("job_filter.labels", given["labels"])
    ignored = "AUDITOR ignored it; ours knows Succeeded, Failed and Deleted"
    result.drop(given, {"namespace", "labels"}, {"status": ignored}, place="job_filter.")
    # AUDITOR's components and labels, which are not in its file.
    result.put("components", "auditor", _COMPONENTS)
    result.put("sites", [{"name": "NOT_CONFIGURED"}], _SITES)
    result.put("meta", [{"name": "group_id", "key": "namespace", "key_type": "String"}], _META)
    if "prometheus_addr" in document:
        host, port = document["prometheus_addr"], document.get("prometheus_port", 9090)
        result.put("prometheus.url", f"http://{host}:{port}", _PROMETHEUS)
        result.put("prometheus.timeout", f"{document.get('prometheus_timeout', 60)}s")
    return result.finish(_TAKEN, _DROPPED)


_FILES: Final = ("/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml")
_COMMENTS: Final = {
    "kubeconfig": "The daemon's user must be able to read it; it only needs get, list and watch on pods, and get on "
    "resourceclaims and resourceclaimtemplates.",
    "earliest_datetime": "Pods that ended before this are ignored.",
    "sites": "The first matching rule names the site.",
}


def detect(host: Host) -> Proposal | None:
    """Propose the cluster of this pod's service account, or of a kubeconfig."""
    if "KUBERNETES_SERVICE_HOST" in host.environ:
        return _proposal("the Kubernetes cluster of this pod", None)
    home = f"{host.environ['HOME']}/.kube/config" if "HOME" in host.environ else ""
    named = [name for name in host.environ.get("KUBECONFIG", home).split(":") if name.startswith("/")]
    for file in host.find(*named, *_FILES):
        return _proposal(f"Kubernetes, by {file}", file)
    return None


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
        Question("namespaces", "Namespaces whose pods to collect, separated by commas (empty: all)"),
        Question("prometheus", "URL of a Prometheus with CPU time and memory of pods (empty: none)"),
    )
    return Proposal(found, options, questions, _COMMENTS)
