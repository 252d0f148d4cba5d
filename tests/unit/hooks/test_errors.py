"""The index of errors has every class, every text that one is raised with, and what to do about it."""

import importlib
import pkgutil
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

import auditord
import auditord_builtin
import auditord_hookspecs
from auditord.manual import find, text_of
from auditord_hookspecs import AuditordError
from tests.references.sources import STATUSES, Errors, Source, all_sources, read_errors
from tests.references.write import PAGES

pytestmark = pytest.mark.slow  # some ten seconds together

TEXTS_OF_OTHERS: Final = {
    "AnsweredError", "HttpError",  # roots, which are not raised themselves
    "Answered", "ConnectionFailed", "HttpStatusError", "InvalidHttpAnswer", "Refused",
    "RecipientBusy", "RecipientRefused", "ServerFailed",  # what the other end says
    "CertificateUntrusted", "NotDelivered", "RecordsRejected", "StoreMisconfigured",  # several texts
}  # fmt: skip


@pytest.fixture(scope="module")
def errors() -> Errors:
    return read_errors(all_sources())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_pages_in_the_manual_are_as_the_sources_say(path: Path) -> None:
    assert path.read_text() == PAGES[path](), "outdated: python -m tests.references.write"


@contextmanager
def suppress_missing(library: str) -> Generator[None, None, None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != library:
            raise


def subclasses(root: type[AuditordError]) -> Iterator[type[AuditordError]]:
    for each in root.__subclasses__():
        yield each
        yield from subclasses(each)


def test_every_class_is_in_it(errors: Errors) -> None:
    for package in (auditord, auditord_builtin, auditord_hookspecs):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                with suppress_missing("pyspark"):  # of an extra that tests do without
                    importlib.import_module(module.name)
    classes = {f"{each.__module__}.{each.__qualname__}" for each in subclasses(AuditordError)}
    ours = {name for name in classes if name.startswith("auditord")}
    assert len(ours) > 70
    assert ours - errors.classes.keys() == set()


def test_every_class_says_what_to_do(errors: Errors) -> None:
    public = {name: each for name, each in errors.classes.items() if not each.name.startswith("_")}
    assert [name for name, each in public.items() if not each.cause] == []
    assert [name for name, each in public.items() if not each.remedy] == [], "its docstring wants a section Remedy:"


def test_texts_are_read_wherever_they_are_written_down(errors: Errors) -> None:
    silent = {each.name for each in errors.classes.values() if not each.messages and not each.name.startswith("_")}
    assert silent - TEXTS_OF_OTHERS == set(), (
        "their texts are made in a way that tests.references.sources does not read"
    )
    assert silent | {"InvalidAnswer", "Refused"} >= TEXTS_OF_OTHERS


def test_every_status_that_is_answered_has_a_cause_and_no_other(errors: Errors) -> None:
    assert STATUSES.keys() == errors.refusals.keys()
    sources = Path(auditord.__path__[0], "web").rglob("*.py")
    named = {
        HTTPStatus[name] for path in sources for name in re.findall(r"Refused\(\s*HTTPStatus\.(\w+)", path.read_text())
    }
    assert named <= STATUSES.keys()


@pytest.mark.parametrize(
    "message",
    [
        "tables migrate daemon start again database",  # a refusal of the start
        "is damaged database check",
        "RECORD_EXISTS",
        "the quarantine has no entry",
        "'after' must be the number of an entry",
        "no record has the id",
        "the reader of the records has closed the output",
    ],
)
def test_words_of_a_message_find_its_entry(message: str) -> None:
    assert any(each.topic.name == "errors" for each in find(message.split()))


def test_texts_are_those_of_the_call_with_what_is_named_left_out(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text('''
from auditord_hookspecs import AuditordError
class TooLate(AuditordError):
    """It is :class:`too late`,
    as ever.

    Remedy:
        come earlier,
        if you can.
    """
def one(name, early):
    text = f"{name} came late" if early else "nobody came"
    raise TooLate(text)
def two():
    text = "never raised with this one"
    return text
''')
    root = Source("auditord_hookspecs.errors", Path(auditord_hookspecs.__path__[0], "errors.py"))
    found = read_errors([root, Source("example", path)]).classes["example.TooLate"]
    assert (found.cause, found.remedy) == ("It is `too late`, as ever.", "come earlier, if you can.")
    assert found.messages == {"… came late", "nobody came"}


def test_the_reference_is_one_entry_each() -> None:
    headings = re.findall(r"^### (.+)$", text_of("errors"), re.MULTILINE)
    assert len(headings) == len(set(headings)) > 90
