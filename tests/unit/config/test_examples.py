"""The configurations in ``etc/examples`` load as they are, with every secret a reference that the unit provides."""

import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from auditord.config.loading import Loaded, load_with_sources
from auditord.config.model import INSTANCE_SECTIONS, kind_of
from auditord.hooks import load_hooks

FILES = sorted((Path(__file__).parents[3] / "etc/examples").glob("*.yml"))
KINDS = load_hooks([]).kinds


def load(file: Path) -> tuple[Loaded, list[str]]:
    """The configuration, and the references that it has resolved."""
    references = list[str]()

    def resolve(reference: str) -> SecretStr | None:
        references.append(reference)
        return SecretStr("sesame") if reference.startswith("credential:secret_") else None

    return load_with_sources([file], KINDS, {}, resolve), references


def instances(file: Path) -> set[str]:
    configuration = load(file)[0].configuration
    return {kind_of(each) for section in INSTANCE_SECTIONS for each in getattr(configuration, section).values()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_loads_and_has_no_secret_of_its_own(file: Path) -> None:
    loaded, references = load(file)
    assert loaded.configuration.state_dir == Path("/var/lib/auditord")
    secrets = re.findall(r"(?:token|password): (\S+)", file.read_text())
    assert sorted(secrets) == sorted(references)
    assert all(each.startswith("credential:secret_") for each in secrets)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("slurm-site", {"slurm", "open_records", "utilisation"}),
        ("slurm-controller-forwarding", {"slurm_epilog", "local", "remote"}),
        ("htcondor-ce-apel", {"htcondor", "apel"}),
        ("kubernetes", {"kubernetes"}),
        ("tardis-hub", {"open_records", "priority", "certificates", "networks"}),
        ("waldur", {"slurm", "waldur"}),
    ],
)
def test_each_scenario_has_what_it_is_about(name: str, kinds: set[str]) -> None:
    assert instances(next(file for file in FILES if file.stem == name)) == kinds


def test_only_the_hub_is_open_and_says_so() -> None:
    opened = [file.stem for file in FILES if load(file)[0].configuration.api.allow_insecure]
    assert opened == ["tardis-hub"]
