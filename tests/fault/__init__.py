"""Whole farms of real processes under faults: what was promised when something breaks, and what is then seen.

`farms` starts, kills, freezes and restarts the processes of one farm; `witness` is the evidence that no two runs
overlapped on a device, written by the kernels themselves; `links` is a network between namespaces that can be cut;
`wires` is a gRPC proxy that repeats and reorders messages. `hostile` is about kernels.

Short versions run with every `make test`; what takes minutes is marked `campaign` and runs with `make fault`.
"""
