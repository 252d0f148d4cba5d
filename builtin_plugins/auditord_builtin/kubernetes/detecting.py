"""A Kubernetes cluster that this host or pod can reach, and a configuration that fits it, for ``auditord init``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from auditord_hookspecs.proposals import Answers, Host, Proposal, Question

_FILES: Final = ("/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml")
_COMMENTS: Final = {
    "kubeconfig": "The daemon's user must be able to read it; get, list and watch of pods is all that it needs.",
    "earliest_datetime": "Pods that ended before this are left alone.",
    "sites": "The first rule that holds names the site.",
}


def detect(host: Host) -> Proposal | None:
    """A cluster by the service account of this pod, or by a kubeconfig."""
    if "KUBERNETES_SERVICE_HOST" in host.environ:
        return _proposal("the Kubernetes cluster of this pod", None)
    for file in host.find(*_named(host.environ), *_FILES):
        return _proposal(f"Kubernetes, by {file}", file)
    return None


def _named(environ: Mapping[str, str]) -> Sequence[str]:
    """The files that kubectl would read; of several, the first that is there."""
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
