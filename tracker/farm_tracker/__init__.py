"""The tracker: the one service of a farm, which holds its truth.

Owns: devices, leases, the build queue, the content-addressed store, the sessions between clients and agents.
Does not own: compilers, devices, or the processes of agents.

Invariant: what was answered was committed before; only `farm_tracker.state` decides, all else carries out.
"""
