"""The fleet: agents as processes that Ray hosts, restarts and places.

Owns: the fleet file, and the only import of ray. Does not own: agents, or any state of the farm (the tracker's).

Invariant: Ray's liveness is never used for the safety of leases; when the fleet ends, its processes are gone.
"""
