"""A small server of the contract in this process, that can be away, break streams and lose blobs.

It keeps what it is sent and answers as the protos say; a test decides when a job goes on. `server` puts the services
together, each of which is in the module of its noun.
"""
