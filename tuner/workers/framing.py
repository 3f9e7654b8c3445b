"""Messages between the tuner and a worker: length-prefixed pickles over a private socket pair.

Nothing here is stored, and both ends are the same program: pickling is safe. Plain sockets and not
``multiprocessing.Connection``, because sending must also respect a deadline: a stopped worker reads nothing.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from typing import Any

_HEADER = struct.Struct("!Q")
_CHUNK = 1 << 20


def send(sock: socket.socket, message: Any, deadline: float | None = None) -> None:
    """Send one message.

    Parameters
    ----------
    deadline
        In ``time.monotonic()`` seconds; None waits for ever.

    Raises
    ------
    TimeoutError
        If the other end does not read in time; the stream is then unusable.
    OSError
        If the other end is gone.
    """
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    sock.settimeout(_left(deadline))
    sock.sendall(_HEADER.pack(len(payload)) + payload)


def receive(sock: socket.socket, deadline: float | None = None) -> Any:
    """Receive one message.

    Raises
    ------
    EOFError
        If the other end is gone.
    TimeoutError
        If nothing whole arrives by ``deadline``; the stream is then unusable.
    """
    (length,) = _HEADER.unpack(_receive_exactly(sock, _HEADER.size, deadline))
    return pickle.loads(_receive_exactly(sock, length, deadline))


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _receive_exactly(sock: socket.socket, length: int, deadline: float | None) -> bytes:
    data = bytearray(length)
    view = memoryview(data)
    got = 0
    while got < length:
        sock.settimeout(_left(deadline))
        try:
            n = sock.recv_into(view[got : got + _CHUNK])
        except ConnectionResetError:
            n = 0
        if n == 0:
            raise EOFError
        got += n
    return bytes(data)
