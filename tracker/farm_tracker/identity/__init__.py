"""Who calls, and what they may do.

Owns: tokens, the table of verbs, the guard before every service, lease tokens, the tracker's certificate, the audit
log. Does not own: the services behind the guard, or what clients keep (`farm.rpc.credentials`).

Invariant: no handler runs for a caller whose token does not allow its verb; no secret is stored or logged, only its
digest.
"""
