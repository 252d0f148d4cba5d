"""The manual: a Markdown file per topic in this folder, and references that parts of the program write on request.

``auditord manual``, the page and (as man pages) ``man`` show it. To add a file, name it in ``index.md``.
"""

from auditord.manual.html import as_html
from auditord.manual.topics import SearchHit, Topic, find, text_of, topics

__all__ = ["SearchHit", "Topic", "as_html", "find", "text_of", "topics"]
