"""Both ends of a tracker as tests play them, over real gRPC: a client, and an agent's process."""
