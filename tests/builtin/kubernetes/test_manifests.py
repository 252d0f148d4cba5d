"""The manifests of etc/kubernetes: their configuration loads, and a real API server takes and enforces them."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from auditord.config.loading import load_text
from auditord.hooks import load_hooks
from tests.builtin.kubernetes.api_process import MISSING, api_server
from tests.builtin.kubernetes.real_cluster import Cluster, connected

Manifest = Mapping[str, Any]
ROOT: Final = Path(__file__).parents[3]
MANIFESTS: Final[Sequence[Manifest]] = list(yaml.safe_load_all((ROOT / "etc/kubernetes/auditord.yml").read_text()))
BY_KIND: Final = {each["kind"]: each for each in MANIFESTS}
APPLY: Final = {"Content-Type": "application/apply-patch+yaml"}
ACCOUNT: Final = "system:serviceaccount:auditord:auditord"


def path_of(manifest: Manifest) -> str:
    """The URL of what a manifest describes."""
    version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
    kinds = "networkpolicies" if kind == "NetworkPolicy" else f"{kind.lower()}s"
    place = f"namespaces/{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{'apis/' if '/' in version else 'api/'}{version}/{place}{kinds}/{metadata['name']}"


async def ask(cluster: Cluster, method: str, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    url = f"{cluster.url.removesuffix('/api/v1')}/{path}"
    async with cluster.session.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def apply(cluster: Cluster, manifest: Manifest) -> None:
    """Apply on the server's side; one that starts says 500 or 503 for a while."""
    status, answer = 503, {"message": ""}
    for _ in range(60):
        status, answer = await ask(cluster, "PATCH", f"{path_of(manifest)}?fieldManager=test", manifest, **APPLY)
        if status not in {500, 503}:
            break
        await asyncio.sleep(0.5)
    assert status in {200, 201}, answer["message"]


async def may(cluster: Cluster, verb: str, resource: str, group: str = "") -> bool:
    """The word of the server's access control about the daemon's account."""
    attributes = {"namespace": "atlas", "verb": verb, "group": group, "resource": resource}
    body = {"spec": {"user": ACCOUNT, "resourceAttributes": attributes}}
    _, answer = await ask(cluster, "POST", "apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def test_the_configuration_loads_and_the_parts_fit_together() -> None:
    text = BY_KIND["ConfigMap"]["data"]["auditord.yml"]
    configuration = load_text(text, "auditord.yml", load_hooks([]).kinds, {"HOME": "/"})
    assert configuration.collectors.keys() == {"kubernetes"}
    pod = BY_KIND["StatefulSet"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert BY_KIND["Service"]["spec"]["selector"] == labels
    assert BY_KIND["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    (container,) = pod["spec"]["containers"]
    containerfile = (ROOT / "etc/container/Containerfile").read_text()
    assert f"USER {pod['spec']['securityContext']['runAsUser']}:" in containerfile
    assert {each["mountPath"] for each in container["volumeMounts"]} >= {"/var/lib/auditord", "/etc/auditord", "/tmp"}  # noqa: S108
    assert {container[f"{each}Probe"]["exec"]["command"][0] for each in ("startup", "readiness", "liveness")} == {
        "healthcheck"
    }


@pytest.mark.parametrize("file", ["etc/examples/kubernetes.yml", "etc/kubernetes/auditord.yml"])
def test_the_examples_record_all_quantities_that_reports_read(file: str) -> None:
    text = (ROOT / file).read_text()
    text = BY_KIND["ConfigMap"]["data"]["auditord.yml"] if "ConfigMap" in text else text
    collector: Any = load_text(text, file, load_hooks([]).kinds, {"HOME": "/"}).collectors["kubernetes"]
    assert {"CoreSeconds", "MemorySeconds", "GPUSeconds", "TotalCPU", "MaxRSS", "WaitTime"} == {
        rule.name for rule in collector.components
    }


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: run tests/services/kube-install")
async def test_a_real_server_takes_them_and_lets_the_account_see_pods_and_claims_alone(tmp_path: Path) -> None:
    async with api_server(tmp_path) as server, connected(server.url, server.token, "manifests") as cluster:
        for manifest in MANIFESTS:
            await apply(cluster, manifest)
        status, stored = await ask(cluster, "GET", path_of(BY_KIND["StatefulSet"]), None)
        assert (status, stored["spec"]["template"]["spec"]["serviceAccountName"]) == (200, "auditord")
        assert [await may(cluster, verb, "pods") for verb in ("get", "list", "watch")] == [True] * 3
        assert [await may(cluster, verb, "pods") for verb in ("create", "delete", "patch")] == [False] * 3
        assert await may(cluster, "get", "resourceclaims", "resource.k8s.io")
        assert not await may(cluster, "list", "secrets")
