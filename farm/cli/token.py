"""``farm token`` and ``farm connect``: who may use a farm, and how this user reaches one.

Owns: those commands. Does not own: what tokens allow (the tracker) or where credentials are kept
(`farm.rpc.credentials`).

Invariant: a secret is on standard output only, once, and only if it was made just now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from farm.cli.connection import connect as connect_to
from farm.cli.connection import tracker_option
from farm.cli.output import Output, output_option, table
from farm.cli.spans import seconds
from farm.cli.text import printable, when

if TYPE_CHECKING:
    from farm.client.tokens import TokenInfo

ROLES = ("user", "agent", "operator", "admin", "enrolment")


@click.group("token")
def command() -> None:
    """Make, list and revoke tokens: who may do what.

    A token has a role, which gives it verbs: user (see, blobs, build, run, lease), operator (operate as well), admin
    (everything), agent (speak for one agent), enrolment (an agent exchanges it for its own credential, once).

    \b
    Example:
      farm token create --role user --account ci --labels kind=ea --expires 30d
      farm token create --role enrolment
      farm token list
      farm token revoke 4f0c21b79a3d5e80
    """  # noqa: D301 - click's mark


@command.command("create")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do.")
@click.option("--verbs", metavar="VERB,VERB", default="", help="Only these of the role's verbs.")
@click.option(
    "--labels", metavar="SELECTOR", default="", help="Only devices that match; empty: all."
)
@click.option("--account", metavar="NAME", default="", help="Who pays; no other can be named.")
@click.option("--agent-id", metavar="NAME", default="", help="The one agent that it is for.")
@click.option(
    "--expires",
    "expires_s",
    callback=seconds,
    metavar="SPAN",
    help="When it ends, such as 12h or 30d.  [default: never; enrolment: 1h]",
)
@tracker_option
@output_option
def create(
    role: str,
    verbs: str,
    labels: str,
    account: str,
    agent_id: str,
    expires_s: float,
    tracker: str | None,
    output: Output,
) -> None:
    """Make a token and show it, this once.

    \b
    Example:
      farm token create --role user --account ci --labels kind=ea --expires 30d

    \b
    JSON: {"token", "connect", "info": as in `farm token list`}
    """  # noqa: D301 - click's mark
    with connect_to(tracker) as client:
        made = client.create_token(
            role,
            verbs=tuple(filter(None, verbs.split(","))),
            labels=labels,
            account=account,
            agent_id=agent_id,
            expires_s=expires_s,
        )
        string = _connect_string(client.address, made.token)
    value = {"token": made.token, "connect": string, "info": _token_json(made.info)}
    text = (
        f"{made.token}\n\n"
        f"Shown this once; its id is {made.info.token_id}. Whoever gets it uses one of:\n"
        f"  FARM_TOKEN={made.token}\n"
        f"  farm connect '{string}'    (with the tracker's host as others know it)"
    )
    output.result(value, text)


@command.command("list")
@tracker_option
@output_option
def list_(tracker: str | None, output: Output) -> None:
    """List the tokens of a farm, without their secrets.

    \b
    Example:
      farm token list

    \b
    JSON: {"tokens": [{"token_id", "role", "verbs", "labels", "account", "agent_id", "created_at",
           "expires_at", "revoked_at", "used_at"}]}, times in seconds since the Unix epoch or null
    """  # noqa: D301 - click's mark
    with connect_to(tracker) as client:
        found = client.tokens()
    value = {"tokens": [_token_json(info) for info in found]}
    header = ("TOKEN", "ROLE", "VERBS", "LABELS", "ACCOUNT", "AGENT", "EXPIRES", "USED", "REVOKED")
    rows = [
        (
            info.token_id,
            info.role,
            ",".join(info.verbs),
            printable(info.labels) or "-",
            printable(info.account) or "-",
            printable(info.agent_id) or "-",
            when(info.expires_at),
            when(info.used_at),
            when(info.revoked_at),
        )
        for info in found
    ]
    output.result(value, table(header, rows))


@command.command("revoke")
@click.argument("token_id", metavar="ID")
@tracker_option
@output_option
def revoke(token_id: str, tracker: str | None, output: Output) -> None:
    """End a token for good, and what runs under it.

    \b
    Example:
      farm token revoke 4f0c21b79a3d5e80

    \b
    JSON: as one of `farm token list`
    """  # noqa: D301 - click's mark
    with connect_to(tracker) as client:
        info = client.revoke_token(token_id)
    output.result(_token_json(info), f"{info.token_id}: revoked")


@click.command("connect")
@click.argument("string", metavar="STRING")
@output_option
def connect(string: str, output: Output) -> None:
    """Keep the credentials for a farm, so that other commands find them.

    STRING is farm://TOKEN@HOST:PORT?sha256=HEX, as `farm token create` prints it. The tracker's certificate is fetched
    and kept if it has this fingerprint. A farm that this user runs on this machine needs no connecting.

    \b
    Example:
      farm connect 'farm://farm_4f0c21b79a3d5e80_...@10.0.0.1:7460?sha256=9f...'
      farm devices --tracker 10.0.0.1:7460

    \b
    JSON: {"address", "path", "encrypted"}
    """  # noqa: D301 - click's mark
    from farm.rpc import credentials

    asked = credentials.ConnectString.parse(string)
    ca = b""
    if asked.fingerprint:
        ca = credentials.fetch_certificate(asked.address, asked.fingerprint)
    credentials.check_may_send(asked.address, ca)
    path = credentials.save(asked.address, credentials.Credentials(asked.token, ca))
    value = {"address": asked.address, "path": str(path), "encrypted": bool(ca)}
    text = (
        f"Credentials for {asked.address} are in {path}"
        f"{'' if ca else '; connections are in PLAIN TEXT'}.\n"
        f"Use it with --tracker {asked.address}, or FARM_TRACKER={asked.address}."
    )
    output.result(value, text)


def _connect_string(address: str, token: str) -> str:
    from farm.rpc import credentials

    ca = credentials.find(address).ca
    pin = credentials.fingerprint_of(ca) if ca else ""
    return str(credentials.ConnectString(address, token, pin))


def _token_json(info: TokenInfo) -> dict[str, object]:
    return {
        "token_id": info.token_id,
        "role": info.role,
        "verbs": list(info.verbs),
        "labels": info.labels,
        "account": info.account,
        "agent_id": info.agent_id,
        "created_at": info.created_at,
        "expires_at": info.expires_at,
        "revoked_at": info.revoked_at,
        "used_at": info.used_at,
    }
