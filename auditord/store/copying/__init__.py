"""Copying a whole record store into another one, whatever databases they are in."""

from auditord.store.copying.copying import Copied, copy_store
from auditord.store.copying.endpoints import Contents, CopyRefused, Progress, contents

__all__ = ["Contents", "Copied", "CopyRefused", "Progress", "contents", "copy_store"]
