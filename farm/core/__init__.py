"""Small things that every room needs: digests, canonical JSON, clocks, ids, files, common messages.

Owns: what more than one room would otherwise write for itself. Does not own: anything of one room.

Invariant: imports nothing of the project but `farm.errors` and `farm.api`, and no gRPC.
"""
