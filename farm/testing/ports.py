"""Ports: checking that one is free, and keeping a free one for a child process.

Owns: that check. Does not own: listening (the child does).

Invariant: nothing listens at the address when it is returned.
"""

from __future__ import annotations

import socket

from farm.errors import InvalidInput


def claim(listen: str) -> str:
    """Return an address that a child process of this one can listen at.

    Parameters
    ----------
    listen
        ``host:port``; port 0 chooses a free one.

    Raises
    ------
    InvalidInput
        The address is malformed or not of this machine, or the port is taken.

    Notes
    -----
    A connection through the port that the listening side closes first leaves it in TIME_WAIT: for a minute the kernel
    gives it to nobody who asks for any free port, while a server that asks for it by number (with SO_REUSEADDR, as all
    servers do) gets it.
    """
    host, colon, number = listen.rpartition(":")
    if not (host and colon and number.isdecimal() and int(number) < 1 << 16):
        raise InvalidInput(f"listen: malformed address ({listen[:300]!r}); use host:port")
    name = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((name, int(number)))
            server.listen(1)
        except OSError as error:
            raise InvalidInput(
                f"listen: {listen} cannot be used ({error.strerror or error}); end the process that has it, "
                "or choose another port with --listen"
            ) from error
        port = server.getsockname()[1]
        if int(number) == 0:
            with socket.create_connection(server.getsockname()[:2]) as near:
                far, _ = server.accept()
                far.close()
                near.recv(1)
    return f"{host}:{port}"
