"""Each parser of text from outside takes whatever comes: it raises what is documented, and neither hangs nor grows.

A short run of the same inputs is part of the ordinary tests. ``pytest -m fuzz -s tests/fuzz`` is the long one, with new
inputs each time; ``AUDITORD_FUZZ_SECONDS`` says how long each parser is tried (600).
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.fuzz.batch_parsers import CLASSADS, SACCT, SCONTROL, note_parser
from tests.fuzz.file_parsers import dropped_parser, yaml_parser
from tests.fuzz.running import Parser, fuzz, smoke
from tests.fuzz.wire_parsers import QUERY_STRING, RECORD_JSON, token_parser

Opened: TypeAlias = Callable[[Path], AbstractContextManager[Parser]]

SECONDS: Final = float(os.environ.get("AUDITORD_FUZZ_SECONDS", "600"))
PARSERS: Final[dict[str, Opened]] = {
    "record-json": lambda _: nullcontext(RECORD_JSON),
    "query-string": lambda _: nullcontext(QUERY_STRING),
    "sacct": lambda _: nullcontext(SACCT),
    "scontrol": lambda _: nullcontext(SCONTROL),
    "classads": lambda _: nullcontext(CLASSADS),
    "notes": lambda folder: nullcontext(note_parser(folder)),
    "dropped-files": lambda folder: nullcontext(dropped_parser(folder)),
    "yaml": lambda folder: nullcontext(yaml_parser(folder)),
    "jwt": token_parser,
}


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_takes_whatever_comes(name: str, tmp_path: Path) -> None:
    with PARSERS[name](tmp_path) as parser:
        smoke(parser)


@pytest.mark.fuzz
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_takes_whatever_comes_for_long(name: str, tmp_path: Path) -> None:
    with PARSERS[name](tmp_path) as parser:
        figures = fuzz(parser, SECONDS)
    print(f"\n{parser.name}: {figures}")  # noqa: T201 that is what the job is run for
