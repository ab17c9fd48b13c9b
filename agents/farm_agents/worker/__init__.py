"""The worker: child processes that build or run one thing and may die.

Owns: the zygote (`python -m farm_agents.worker`), its forked children, the channels between them and the agent.
Does not own: starting and judging workers (`farm_agents.zygotes`), which is the agent's side.

Invariant: nothing here imports grpc or ray or starts a thread, so that forking is safe; nothing reads pickles.
"""
