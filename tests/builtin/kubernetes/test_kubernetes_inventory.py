"""The inventory of a cluster for audits, and what ``auditord doctor`` says of the way to it."""

from datetime import timedelta

import pytest

from auditord_builtin.kubernetes.collecting import KUBERNETES, check, reach
from auditord_hookspecs import Produced, Window
from auditord_hookspecs.checks import Severity
from tests.builtin.kubernetes.conftest import Site
from tests.builtin.kubernetes.pod_maker import NOW, make_pod, over

pytestmark = pytest.mark.anyio
MINUTE = timedelta(minutes=1)


async def test_what_was_collected_is_listed_again(site: Site) -> None:
    pods = [site.server.put(over(make_pod(f"job{number}"), NOW - number * MINUTE)) for number in range(1, 4)]
    collected = [record.record_id for record in await site.collect()]
    assert KUBERNETES.inventory is not None
    site.context.window, site.context.dry_run = Window(NOW - 60 * MINUTE, NOW), True
    batches = [batch async for batch in KUBERNETES.inventory(site.config(), site.context)]
    found = [each.record if isinstance(each, Produced) else each for batch in batches for each in batch.records]
    assert sorted(record.record_id for record in found) == sorted(collected)
    assert len(found) == len(pods)


async def test_no_pod_is_extra_and_none_before_the_first_run_is_missing(site: Site) -> None:
    chosen = site.config(earliest_datetime=(NOW - 5 * MINUTE).isoformat())
    assert (await reach(chosen, site.context)).collects == NOW - 5 * MINUTE
    site.server.put(over(make_pod(), NOW - MINUTE))
    await site.collect()
    found = await reach(site.config(), site.context)
    assert found.remembers == site.context.now()
    assert found.collects is not None
    assert found.collects <= site.context.now()


async def test_a_cluster_that_answers_is_well_and_one_that_does_not_is_not(site: Site) -> None:
    found = [finding async for finding in check(site.config(), site.context)]
    assert {finding.severity for finding in found} == {Severity.OK}
    assert found[-1].subject == "all namespaces"
    absent = [finding async for finding in check(site.config(kubeconfig="/nowhere"), site.context)]
    assert Severity.FAILURE in {finding.severity for finding in absent}
