"""What the state says was reported, as a table: ``auditord apel show``."""

from collections.abc import AsyncIterator, Iterator, Sequence

from auditord_builtin.apel.books import MonthBook, SiteBook, read_books
from auditord_builtin.apel.metrics import stages
from auditord_hookspecs import PluginContext

_LINE = "{:<24} {:<7} {:>10} {:>10} {:>12} {:>8}  {}"


async def overview(context: PluginContext, sites: Sequence[str]) -> AsyncIterator[str]:
    """One line for each site and month, then what is in the way of jobs that are not reported.

    Args:
        context: with the state.
        sites: by their names in GOCDB.
    """
    books = read_books(context.state).sites
    if not any(site in books for site in sites):
        yield "nothing was reported yet"
        return
    yield _LINE.format("site", "month", "stored", "reported", "acknowledged", "waiting", "last acknowledged")
    for site in sites:
        for line in _lines(site, books.get(site, SiteBook())):
            yield line
    for site in sites:
        for book in books.get(site, SiteBook()).months.values():
            for problem in book.problems:  # which name site and month
                yield f"! {problem}"


def _lines(site: str, book: SiteBook) -> Iterator[str]:
    jobs = stages(book)
    for text in sorted({month for month, _ in jobs}):
        month = book.months.get(text, MonthBook())
        waiting = 0 if month.outbox is None else len(month.outbox.messages)
        moment = "" if month.acknowledged is None else f"{month.acknowledged:%Y-%m-%d %H:%M:%S}Z"
        figures = [jobs[text, stage] for stage in ("stored", "reported", "acknowledged")]
        yield _LINE.format(site, text, *figures, waiting, moment).rstrip()
