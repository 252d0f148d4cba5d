from collections.abc import AsyncIterator
from typing import Any

from auditord.config.faults import json_schema, options_at
from auditord.config.kinds import InstalledKinds, configuration_model, instance_models
from auditord.config.yaml_files import parse
from auditord_hookspecs import Batch, CollectorContext, CollectorKind, RunConfig


class Stamp:
    """A value that JSON cannot describe."""


class OddConfig(RunConfig):
    stamp: Stamp = Stamp()
    tree: "tuple[OddConfig, ...]" = ()


async def collect(config: OddConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    yield Batch(checkpoint=[config, context])


def schema(**kinds: CollectorKind[Any]) -> dict[str, Any]:
    return json_schema(configuration_model(instance_models(InstalledKinds(collectors=kinds))))


def test_options_that_json_cannot_describe_do_no_harm() -> None:
    options = schema(odd=CollectorKind("odd", OddConfig, collect))["$defs"]["OddCollector"]["properties"]
    assert set(options) >= {"stamp", "kind", "interval"}


def test_options_of_a_model_within_itself_are_found() -> None:
    odd = schema(odd=CollectorKind("odd", OddConfig, collect))
    written = parse("collectors: {a: {kind: odd, tree: [{tree: [{}]}]}}", "a.yml").values
    found = options_at(odd, written, ("collectors", "a", "tree", 0, "tree", 0))
    assert {"stamp", "tree", "interval"} <= set(found)
    assert "kind" not in found


def test_what_is_not_there_has_no_options() -> None:
    assert options_at(schema(), {}, ("collectors", "a", "more")) == []
    assert options_at(schema(), {}, ("nothing", 5, "more")) == []


def test_nothing_must_be_written() -> None:
    assert schema()["required"] == []
