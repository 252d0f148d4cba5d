"""Copying a whole record store into another one, whatever databases they are in."""

from auditord.store.copying.copying import Copied, copy_store
from auditord.store.copying.ends import CopyRefused, Progress

__all__ = ["Copied", "CopyRefused", "Progress", "copy_store"]
