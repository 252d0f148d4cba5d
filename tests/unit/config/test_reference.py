"""``etc/auditord.yml`` is the reference that operators read: every option is in it, with its real default."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, SecretStr, create_model

from auditord.config.loading import load_text
from auditord.config.model import INSTANCE_SECTIONS, Configuration
from auditord.config.shown import show
from auditord.config.yaml_files import parse
from auditord.hooks import load_hooks
from auditord_hookspecs import AuthenticatorKind, Section, SenderKind, TransformKind
from auditord_hookspecs.kinds import AnyKind

REFERENCE = (Path(__file__).parents[3] / "etc/auditord.yml").read_text()
ACTIVE = "\n".join(line[1:] if re.match("#(?!#)", line) else "" for line in REFERENCE.splitlines())
KINDS = load_hooks([]).kinds
SHIPPED = [(section, kind) for section, kinds in KINDS.sections().items() for kind in kinds.values()]

EXAMPLES = {"same_source_as", "summary_fields", "waldur_api_token"}
"""Options that have a value there and no default: they mean something beside others, or one of several is needed."""


@cache
def load(text: str) -> Configuration:
    return load_text(text, "etc/auditord.yml", KINDS, {"HOME": "/home/me"})


@cache
def all_written() -> Mapping[str, Any]:
    """Every section of the reference, with its options switched on."""
    return parse(ACTIVE, "etc/auditord.yml").values


def options(model: type[BaseModel]) -> Iterator[str]:
    """Every option of a model and of the models in it."""
    for name, field in model.model_fields.items():
        yield field.alias or name
        for inner in models_in(field.annotation):
            yield from options(inner)


def models_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and not get_args(annotation):
        if issubclass(annotation, Section):
            yield annotation
        return
    for argument in get_args(annotation):
        yield from models_in(argument)


def test_as_shipped_it_says_nothing() -> None:
    assert parse(REFERENCE, "etc/auditord.yml").values == {}


def test_with_its_options_switched_on_it_loads() -> None:
    assert set(load(ACTIVE).collectors) >= {"slurm", "cluster_b"}


def test_the_hosts_options_have_their_real_defaults() -> None:
    written, default = (show(load(text), parse(text, "x")).values for text in (ACTIVE, "state_dir: /var/lib/auditord"))
    for name in Configuration.model_fields:
        if name not in INSTANCE_SECTIONS:
            assert (name, written[name]) == (name, default[name])


def test_it_has_every_option_of_the_host() -> None:
    assert missing(all_written(), show(load("state_dir: /var/lib/auditord"), parse("", "x")).values) == []


def missing(written: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    absent = [name for name in wanted if name not in written]
    inner = [each for name in wanted if isinstance(wanted[name], dict) for each in missing(written[name], wanted[name])]
    return absent + inner


@pytest.mark.parametrize(("section", "kind"), SHIPPED, ids=lambda each: getattr(each, "name", each))
def test_it_has_every_option_of_every_shipped_kind(section: str, kind: AnyKind) -> None:
    part = re.search(rf"^#{section}:\n(.*?)(?=^#\w|\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    assert part
    absent = {name for name in options(kind.config) if not re.search(rf"(^#+ |[{{,-]) *{name}:", part[1], re.MULTILINE)}
    assert absent == set()


@pytest.mark.parametrize(("section", "kind"), SHIPPED, ids=lambda each: getattr(each, "name", each))
def test_the_instance_named_as_its_kind_has_the_kinds_defaults(section: str, kind: AnyKind) -> None:
    written = all_written()[section][kind.name]
    instance: Any = getattr(load(ACTIVE), section)[kind.name]
    runs = (
        {}
        if isinstance(kind, SenderKind | AuthenticatorKind | TransformKind)
        else {"interval": kind.interval, "timeout": kind.timeout}
    )
    for name, field in kind.config.model_fields.items():
        key = field.alias or name
        if key in EXAMPLES:
            continue
        default = field.get_default(call_default_factory=True)
        if field.validate_default:  # the validator fills it from the section labels
            model = create_model("Option", option=(field.annotation, field))
            default = getattr(model(), "option")  # noqa: B009 mypy does not know the field
        if key in written and not field.is_required():
            assert (key, getattr(instance, name)) == (key, runs.get(key) if default is None else default)
        else:
            assert field.is_required() is (key in written) or default is None or default == SecretStr("")
