"""A small server of the contract with clients, in this process, that can be away, break streams and lose blobs.

It keeps what it is sent and answers as the protos say; a test decides when a job goes on.
"""
