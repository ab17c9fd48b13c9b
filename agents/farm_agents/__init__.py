"""The agent: a process that owns devices and builders, and dials the tracker.

Owns: the agent process, its workers (child processes that build or run and may die), device drivers, the fleet.
Does not own: policy (which lease, which build goes where): that is the tracker's.

Invariant: the agent process never loads code that a user sent, and never forks without `exec`.
"""
