"""The sandbox around code of strangers: namespaces by bubblewrap, a system call filter, cgroups, limits.

Owns: what a confined process sees and may do, starting such rooms ahead, proving them empty, and the test that
tries to break out of one. Does not own: what runs inside (`farm_agents.worker`), or whether a device that cannot
confine may be used (`farm_agents.spec.AgentSpec.sandbox`).

Invariant: nothing here imports grpc or llvmlite, since the worker uses `seccomp`, `bpf` and `confine` too; a sandbox
that was not proved to hold is never called one.
"""
