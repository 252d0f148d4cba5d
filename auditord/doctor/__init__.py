"""Check everything that a configuration refers to, without effects; works with and without a running daemon.

* ``examining``: every check behind a boundary, and the findings with their places;
* ``host``: files, disks, addresses; ``daemon``: the process and its instances; ``records``: the record store;
  ``replica``: the replica of it;
  ``instances``: what kinds look at themselves, and the certificates in any section with their keys.
"""

from auditord.doctor.examining import Examined, examine

__all__ = ["Examined", "examine"]
