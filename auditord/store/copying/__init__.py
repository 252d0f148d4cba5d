"""Copy a whole record store into another one, between the same or different databases."""

from auditord.store.copying.copying import Contents, Copied, contents, copy_store
from auditord.store.copying.endpoints import CopyRefused, Progress

__all__ = ["Contents", "Copied", "CopyRefused", "Progress", "contents", "copy_store"]
