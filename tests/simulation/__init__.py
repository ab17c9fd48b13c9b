"""Whole farms on a virtual clock, with faults from a seed: `make simulate SEEDS=10000`.

Real: the tracker's core (`farm_tracker.state`), what of a step is durable (`commits.durable_part`), taking over after a
restart (`adopting`), the store with its rows and tables (SQLite in memory, used whenever a tracker starts), the agents'
core (`farm_agents.state`), back-off, limits and errors. Simulated, thinly and in the order of the real shells, each in
the module that names what it stands for: the tracker's process (`tracker`), its disk (`disk`), the network (`network`,
`wire`), agents' processes (`agent`, `runs`), hosts with devices and the processes on them (`host`), clients and
operators (`clients`, `farm`). Not simulated: the content of sessions, blobs and their transfer, tokens, the sandbox.

`plan` draws a farm, its clients and its faults from a seed; `farm` lives through it; `checks` holds the invariants and
looks after every step; `story` makes a failing plan small and tells it; `plants` puts real bugs in, to show that they
are found.

Invariant: a seed gives the same history each time; a violation is of the product's code, or the simulation is wrong.
"""
