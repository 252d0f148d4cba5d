"""Parsers of files: dropped ones with records, and the configuration."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import SecretStr, ValidationError

from auditord.config.consistency import inconsistencies
from auditord.config.faults import describe
from auditord.config.kinds import configuration_model, instance_models
from auditord.config.yaml_files import parse, read_tagged_file
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks
from auditord_builtin.files.reading import FilesConfig, Position, read_part
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.folders import SharedFolder, identity
from tests.fuzz.mutation import mutated
from tests.fuzz.running import Parser, require_text

_LINE: Final = (
    b'{"record_id":"%d","start_time":"2026-01-01T00:00:00Z","stop_time":null,"components":[],"meta":{"a":["b"]}}\n'
)
_CSV: Final = (
    b"record_id,start_time,stop_time,meta.site_id,amount.Cores,score.Cores.HEPscore23,amount.Memory\n"
    b"a,2026-01-01T00:00:00Z,2026-01-02T00:00:00Z,A,8,12.5,1000\n"
    b'"b,""c""",2026-01-01T00:00:00Z,,,8,,\n'
)
_QUOTED: Final = b'\xef\xbb\xbf"record_id","start_time"\r\n"x","2026-01-01 0:0:0 UTC"\r\n'


def dropped_parser(folder: Path) -> Parser:
    """The parser of dropped files, which are written into the folder."""
    config = FilesConfig(folder=folder)

    def parse_dropped(text: bytes) -> None:
        for name in ("a.ndjson", "a.csv"):
            (folder / name).write_bytes(text)
            with SharedFolder.opened(folder) as opened:
                _read_all(config, opened, name, text)

    samples = [_LINE % 1 + _LINE % 2, _CSV, _QUOTED]
    return Parser("dropped files", mutated(samples, [b"amount.", b"score.", b"meta.", b'""', b",,"]), parse_dropped)


def _read_all(config: FilesConfig, folder: SharedFolder, name: str, text: bytes) -> None:
    position, records = Position(identity(folder.status(name))), 0
    while True:
        try:
            part = read_part(config, folder, name, position)
        except InvalidRecord:
            return
        records += len(part.outcomes.records)
        assert part.position.whole or part.position.offset > position.offset
        position = part.position
        if position.whole:
            break
    # A line that is not blank makes a record, is quarantined or counted: none is lost, but for the header.
    wanted = sum(bool(each.strip()) for each in text.split(b"\n"))
    lines = records + position.entries + position.more
    assert wanted - lines == (name.endswith(".csv")), (wanted, lines)


_ETC: Final = (Path(__file__).parents[2] / "etc/auditord.yml").read_text()
_ACTIVE: Final = "\n".join(line[1:] for line in _ETC.splitlines() if re.match("#(?!#)", line))
_CONFIGURATIONS: Final = [
    b"state_dir: /var/lib/auditord\napi: {listen: ['127.0.0.1:0', 'unix:/run/a.sock'], max_body: 64 MiB}\n",
    b"collectors:\n  here:\n    kind: slurm\n    interval: 5m\n    sites: [{name: A, matches: {Partition: x}}]\n",
    b"a: &b [1, 0x1f, 0o17, .5e3, ~, 'x', \"\\u00e9\", |\n  text\n  ]\nc: *b\n--- \n",
    b"sort_by: !Attribute {name: x}\n? - a\n: b\n<<: {c: d}\n",
    b"a: &a [x, x]\nb: &b [*a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c]\n",
    *(part.encode() for part in _ACTIVE.split("\n\n")[:10] if part),
]


def yaml_parser(folder: Path) -> Parser:
    """The parser of configurations; those with tags are written into the folder."""
    kinds, file = load_hooks([]).kinds, folder / "auditor.yml"
    models = instance_models(kinds)
    model = configuration_model(models)

    def parse_yaml(text: bytes) -> None:
        _read_tagged(file, text)
        document = parse(text, "a.yml")
        values = {"state_dir": "/var/lib/auditord", **document.values}
        try:
            configuration = model.model_validate(values, context={"resolve_secret": SecretStr})
        except ValidationError as error:
            require_faults(describe(error, document, models))
        else:
            inconsistencies(configuration, kinds, document)

    words = [
        b"collectors:\n",
        b"  kind: slurm\n",
        b": ",
        b"- ",
        b"&x ",
        b"*x",
        b"!!python/object:os.system ",
        b"? ",
        b"|\n",
    ]
    return Parser("YAML", mutated(_CONFIGURATIONS, words), parse_yaml, (ConfigurationError,), few=30)


def require_faults(faults: Sequence[str]) -> None:
    """Fail where a configuration is refused without a reason."""
    assert all(faults), faults
    assert faults


def _read_tagged(file: Path, text: bytes) -> None:
    file.write_bytes(text)
    try:
        read_tagged_file(file)
    except ConfigurationError as error:
        require_text(error)
