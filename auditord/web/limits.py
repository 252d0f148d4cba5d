"""The limits of one request that reads: each number that a caller chooses, and what it multiplies with.

A limit of each number is not enough, because memory and time grow with products. Each product has a limit of its own,
which is checked before anything of that size is built:

====================  ================================  ==========================================================
a caller chooses      limit                             multiplies with; the limit of the product
====================  ================================  ==========================================================
``by``                :data:`MOST_DIMENSIONS`           keys of labels (:data:`MOST_KEYS` each), and components: the
                                                        text and the parameters of one statement, 2 MB
values of ``by``      none                              components, scores and their values: MANY_GROUPS groups, and
                                                        SUMS_PER_GROUP times as many sums
                                                        (:class:`auditord.store.aggregates.Folding`)
``usage``             :data:`MOST_COMPONENTS`           dimensions and groups, see above
scores of ``usage``   :data:`MOST_SCORES`, all          groups and values of scores, see above
                      components together
time zones            those of ``by``                   periods: MOST_SPLIT_DAYS days of all zones together
                                                        (:mod:`auditord.store.rollups.scope`); components, and twice
                                                        with ``as_of``: :data:`MOST_ZONED`
filters               :data:`MAX_CONDITIONS`            components, and twice with ``as_of``, because each has its own
                                                        part of the statement: :data:`MOST_FILTERED`
rows of a table       :data:`MOST_ROWS`                 bins: 62 columns and 5,000 cells (:mod:`.page.usage`)
bins of a chart       :data:`MOST_BINS`                 rows: 8, and all others as one
rows of a file        MANY_GROUPS                       bins: :data:`MOST_CELLS`, of 25 bytes
jobs of a file        none                              columns: :data:`MOST_CELLS`, on disk
labels typed in       :data:`MOST_KEPT` answers, kept   values of a label: :data:`MOST_VALUES`, of 256 characters; of
                      for all callers together          these, :data:`MOST_SUGGESTED` are sent
records of a page     :data:`LARGEST_PAGE`              their size: streamed, so one page of the database
requests at a time    ``api.max_long_reads``, half      all of the above: two large answers at a time (MANY_GROUPS), of
                      for one principal                 all principals; the others have at most FEW_GROUPS
====================  ================================  ==========================================================
"""

from typing import Final

MOST_DIMENSIONS: Final = 20
MOST_KEYS: Final = 10
"""The most meta keys of a dimension."""

MOST_COMPONENTS: Final = 20
MOST_SCORES: Final = 20
"""The most scores of a query for sums, over all components."""

FEW_GROUPS: Final = 10_000
"""The most groups of a query in an ordinary place: some 20 MB."""

MANY_GROUPS: Final = 50_000
"""The most groups of a query in a place for large answers: some 120 MB including the response."""

MAX_CONDITIONS: Final = 250
"""The most conditions of a query; databases limit the depth of expressions (SQLite: 1,000)."""

MOST_FILTERED: Final = 2_000
"""The most filters times components of a query. SQLite needs 0.3 s to compile this, and 25 s for 10,000."""

MOST_ZONED: Final = 30
"""The most dimensions with a time zone, times components. Each part of the statement has all changes of each zone's
clocks: 1.2 MB in SQLite."""

LARGEST_PAGE: Final = 10_000
"""The most records of a JSON response, which clients read into memory as a whole. NDJSON has no limit."""

MOST_ROWS: Final = 1_000
"""The most rows of a table."""

MOST_SUGGESTED: Final = 40
"""The most labels, values or components that a form offers, and values in an answer to typing."""

MOST_VALUES: Final = 1_000
"""The most values of a label, those with the most records, that are searched while a visitor types."""

MOST_KEPT: Final = 100
"""The most answers that are kept for suggestions: 30 MB."""

MOST_BINS: Final = 800
"""The most bins of a chart."""

MOST_CELLS: Final = 1_000_000
"""The most cells (rows times bins) of a file."""
