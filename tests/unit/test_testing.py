"""The stand-ins for plugin authors behave like the host in what a test can see."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from auditord.testing import EPOCH, FakeCollectorContext, FakePluginContext, FakeSenderContext, HttpRequest, make_record
from auditord_hookspecs import (
    Batch,
    CollectorContext,
    CommandFailed,
    Component,
    HttpOptions,
    Insert,
    InvalidRecord,
    Record,
    RecordQuery,
)

pytestmark = pytest.mark.anyio


async def collect_once(context: CollectorContext) -> AsyncIterator[Batch]:
    if not await context.find_seen(["a"]):
        yield Batch(records=[make_record("a")], checkpoint=1, seen={"a": EPOCH + timedelta(days=1)}, pending={"p": 5})
    yield Batch(pending={"p": None})


async def test_a_collector_meets_again_what_it_left() -> None:
    context = FakeCollectorContext()
    assert [record.record_id for record in await context.keep(collect_once(context))] == ["a"]
    assert await context.keep(collect_once(context)) == []
    assert (context.checkpoint, await context.pending()) == (1, {})
    context.moment += timedelta(days=2)
    assert await context.find_seen(["a"]) == frozenset()


wrong: Any = Component  # type checkers find most of these mistakes


@pytest.mark.parametrize(
    ("batch", "error", "expected"),
    [
        (Batch([Record("a", EPOCH, (wrong("Cores", 4.0, ()),))]), InvalidRecord, "a: .* Expected `int`, got `float`"),
        (Batch([Record("a", EPOCH, (), meta={"site_id": "s"})]), InvalidRecord, "a: .* Expected `array`, got `str`"),  # type: ignore[dict-item]
        (Batch(skipped=1), TypeError, "test: skipped of a batch is 1"),  # type: ignore[arg-type]
        (Batch(checkpoint=Path("/")), TypeError, "test: checkpoint of a batch is not JSON"),
        (Batch(pending={"a": EPOCH}), TypeError, r"test: pending\['a'\] of a batch is not JSON"),
    ],
)
async def test_a_batch_that_a_daemon_refuses_is_refused(batch: Batch, error: type[Exception], expected: str) -> None:
    async def collect() -> AsyncIterator[Batch]:
        yield batch

    with pytest.raises(error, match=expected):
        await FakeCollectorContext().keep(collect())


async def test_values_are_kept_as_json() -> None:
    async def collect() -> AsyncIterator[Batch]:
        components: Any = [Component("Cores", 1, ())]
        yield Batch([Record("a", EPOCH, components)], checkpoint=(1, 2), pending={"a": (3,)})

    context, plugin = FakeCollectorContext(), FakePluginContext()
    (record,) = await context.keep(collect())
    assert (record.components, context.checkpoint, await context.pending()) == (
        (Component("Cores", 1, ()),),
        [1, 2],
        {"a": [3]},
    )
    await plugin.save_state({"posted": (1, 2)})
    assert plugin.state == {"posted": [1, 2]}
    with pytest.raises(TypeError, match="datetime is not JSON serializable"):
        await plugin.save_state(EPOCH)


async def test_commands_are_played_and_remembered() -> None:
    context = FakeCollectorContext(commands=lambda argv: argv[0].encode())
    printed = await context.run_command(["sacct", "-a"], timeout=timedelta(seconds=1), through=["ssh", "head1"])
    assert (printed.stdout, context.ran) == (b"sacct", [("ssh", "head1", "sacct", "-a")])
    async with context.stream_command(["sacct"], timeout=timedelta(seconds=1)) as output:
        assert [piece async for piece in output] == [b"sacct"]
    with pytest.raises(CommandFailed, match="sacct"):
        await FakeCollectorContext().run_command(["sacct"], timeout=timedelta(seconds=1))


async def test_a_plugin_reads_what_the_test_stored() -> None:
    context = FakePluginContext(stored=[make_record("a", cores=8, site_id="s")])
    async with context.records.stream(RecordQuery()) as records:
        assert [record.components[0].amount async for record in records] == [8]


async def test_a_sender_is_told_what_is_refused() -> None:
    context = FakeSenderContext(refuse={"b": "no"})
    reasons = await context.store.deliver([Insert(make_record("a")), Insert(make_record("b"))])
    assert (dict(reasons), context.delivered) == ({1: "no"}, [Insert(make_record("a"))])


async def test_servers_elsewhere_are_played_and_remembered() -> None:
    context = FakePluginContext(server=lambda request: request.answer(201, request.body or b"", next="u"))
    async with context.http(HttpOptions(headers={"a": "b"})) as client:
        answer = await client.request("POST", "https://far.example/x", params=[("c", "d")], body=b"1")
        async with client.stream("GET", "https://far.example/y") as pieces:
            assert [piece async for piece in pieces] == []
    assert (answer.ok, answer.status, answer.body, dict(answer.links)) == (True, 201, b"1", {"next": "u"})
    assert context.requested == [
        HttpRequest("POST", "https://far.example/x", [("c", "d")], {"a": "b"}, b"1"),
        HttpRequest("GET", "https://far.example/y", (), {"a": "b"}),
    ]


AUTHORS_TESTS = """
from auditord.testing import FakeCollectorContext
import pytest

@pytest.fixture
def named(collector_context):
    collector_context.instance = "mine"
    return collector_context

async def test_a_fixture_of_the_author_s(named):
    assert await named.pending() == {}

async def test_no_fixture():
    assert await FakeCollectorContext().find_seen(["a"]) == frozenset()

class TestInAClass:
    async def test_it(self, named):
        assert named.instance_dir.is_dir()

@pytest.mark.parametrize("number", [1, 2])
async def test_parameters(number, authenticator_context):
    assert number and authenticator_context.state_dir.is_dir()
"""


def test_asynchronous_tests_of_authors_run_out_of_the_box(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(AUTHORS_TESTS)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=5)


def test_asynchronous_tests_of_others_are_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("async def test_it(): ...")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(failed=1)
