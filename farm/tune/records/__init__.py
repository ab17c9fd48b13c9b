"""Records: every measurement of every candidate, kept and shared.

Owns: what a record holds, the database, its exchange with other databases. Does not own: measuring, or searching.

Invariant: append-only: what was recorded is never changed nor deleted.
"""

from farm.tune.records.database import Records
from farm.tune.records.record import Key, Outcome, Record, Workload
from farm.tune.records.winner import Winner

__all__ = ["Key", "Outcome", "Record", "Records", "Winner", "Workload"]
