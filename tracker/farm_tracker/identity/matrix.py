"""Which method needs which verb: the one table, walked by a test.

Owns: the table, and where a request names devices and accounts. Does not own: roles (`model`).

Invariant: a method that is not in the table is refused to everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm_tracker.identity.model import Verb

PACKAGE = "farm.api.v1"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a method needs.

    Attributes
    ----------
    selector, account
        Where its request names devices or an account, as a path of fields: narrowed to what the token allows.
    logged
        Whether the audit log shows it when it is allowed; refusals are always shown.
    """

    verb: Verb
    selector: str = ""
    account: str = ""
    logged: bool = False


RULES: dict[str, Rule] = {
    "AccountService/ListAccounts": Rule(Verb.SEE, account="account"),
    "AccountService/SetLimits": Rule(Verb.TOKENS, account="account", logged=True),
    "AdminService/Events": Rule(Verb.SEE, selector="selector", account="account"),
    "AdminService/ListLeases": Rule(Verb.SEE, selector="selector", account="account"),
    "AdminService/SetAdmin": Rule(Verb.OPERATE, selector="selector", logged=True),
    "AgentService/Serve": Rule(Verb.AGENT, logged=True),
    "AgentService/Synchronise": Rule(Verb.AGENT, logged=True),
    "BlobService/FindMissing": Rule(Verb.BLOBS),
    "BlobService/Read": Rule(Verb.BLOBS),
    "BlobService/Usage": Rule(Verb.SEE),
    "BlobService/Write": Rule(Verb.BLOBS),
    "BuildService/Build": Rule(Verb.BUILD, logged=True),
    "DeviceService/ListAgents": Rule(Verb.SEE, selector="selector"),
    "DeviceService/ListDevices": Rule(Verb.SEE, selector="selector"),
    "IdentityService/CreateToken": Rule(Verb.TOKENS, logged=True),
    "IdentityService/Enrol": Rule(Verb.ENROL, logged=True),
    "IdentityService/ListTokens": Rule(Verb.TOKENS),
    "IdentityService/RevokeToken": Rule(Verb.TOKENS, logged=True),
    "JobService/Cancel": Rule(Verb.RUN, logged=True),
    "JobService/GetJob": Rule(Verb.SEE),
    "JobService/ListJobs": Rule(Verb.SEE, account="account"),
    "JobService/Logs": Rule(Verb.SEE),
    "JobService/Submit": Rule(Verb.RUN, selector="run.selector", account="account", logged=True),
    "JobService/Wait": Rule(Verb.SEE),
    "JobService/Why": Rule(Verb.SEE),
    "LeaseService/Acquire": Rule(Verb.LEASE, selector="selector", logged=True),
    "LeaseService/Release": Rule(Verb.LEASE, logged=True),
    "LeaseService/Renew": Rule(Verb.LEASE),
    "RunService/Run": Rule(Verb.RUN, selector="selector", logged=True),
    "SessionService/Attach": Rule(Verb.LEASE, logged=True),
}


def rule_of(method: str) -> Rule | None:
    """Return the rule of ``/farm.api.v1.Service/Method``; None: nobody may call it."""
    prefix = f"/{PACKAGE}."
    return RULES.get(method.removeprefix(prefix)) if method.startswith(prefix) else None
