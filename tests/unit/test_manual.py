"""The manual's text on its way to the page and to man."""

import pytest

from auditord.manual import as_html, find, text_of, topics
from rpm.man_pages import man_page

TEXT = """\
# Title

## One `code`: here

A *b* **c** `d-e` <script>; see [Slurm](slurm.md#suspended-jobs), [home](https://example.org/a.md).

- `--option VALUE`: does it.
- plain

| a | b |
|---|---|
| `x` | y |

```sh
# no heading
.dotted 'x'
```
"""


def test_html_has_anchors_and_addresses_of_topics_and_takes_no_html() -> None:
    html = as_html(TEXT, lambda name: f"/manual/{name}")
    assert '<h2 id="one-code-here">' in html
    assert '<a href="/manual/slurm#suspended-jobs">' in html
    assert '<a href="https://example.org/a.md">' in html
    assert "&lt;script&gt;" in html
    assert "<table>" in html


def test_a_man_page_has_fonts_terms_and_code_as_they_are() -> None:
    page = man_page("auditord-x", 1, "do it", TEXT, "1.0").splitlines()
    assert page[0] == '.TH AUDITORD\\-X 1 "" "auditord 1.0" "auditord"'
    assert page[1:3] == [".SH NAME", r"auditord\-x \- do it"]
    assert r".SH One \fBcode\fR: here" in page
    assert r"A \fIb\fR \fBc\fR \fBd\-e\fR <script>; see Slurm, home." in page
    assert page[(at := page.index(".TP")) : at + 3] == [".TP", r"\fB\-\-option VALUE\fR", "does it."]
    assert [".TP", r"\fBx\fR", "y"] in [page[at : at + 3] for at in range(len(page))]
    assert page[(at := page.index(".EX")) : at + 4] == [".EX", "# no heading", r"\&.dotted \(aqx\(aq", ".EE"]


def test_text_before_the_first_heading_is_the_description() -> None:
    assert ".SH DESCRIPTION" in man_page("x", 5, "y", "# Title\n\nText.\n", "1").splitlines()


def test_every_topic_has_a_title_of_its_own_and_a_chapter() -> None:
    assert all(topic.title and topic.chapter for topic in topics().values())
    for name in topics():
        assert text_of(name).startswith("# ")


def test_a_topic_that_is_not_there_is_refused_also_with_a_path() -> None:
    for name in ("nothing", "../README", "__init__"):
        with pytest.raises(KeyError):
            text_of(name)


def test_sections_with_the_words_in_their_headings_come_first() -> None:
    found = list(find(["suspended"]))
    assert (found[0].topic.name, found[0].heading) == ("slurm", "Suspended jobs")
    assert len(found) > 1
    assert list(find(["suspended", "nowhere-at-all"])) == []
