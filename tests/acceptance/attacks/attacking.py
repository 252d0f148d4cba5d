"""Clients that want to take a server down: ``attacking.py NAME PORT SECONDS``. A program of its own, not a test.

Prints a line of JSON at its end: how often each thing happened that the attack counts.
"""

import asyncio
import gzip
import json
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

ADDRESSES: Final = ("127.0.0.2", "127.0.0.3")
READERS: Final = 25
IDLE: Final = 1_500
BOMB: Final = gzip.compress(b"[" + b"0," * ((32 << 20) - 2) + b"0]", 9)
"""64 MiB of JSON in some 65 kB."""
VALUES: Final = b"[" + b"{}," * (5 << 20) + b"{}]"
"""15 MiB, whose elements would take 280 MiB."""

happened: Final = Counter[str]()

Attack = Callable[[str, int], Awaitable[None]]


async def connected(address: str, port: int, receive_buffer: int | None = None) -> socket.socket:
    """A connection from one of this host's own addresses."""
    sock = socket.socket()
    sock.setblocking(False)  # noqa: FBT003 a keyword is not taken
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.bind((address, 0))
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    return sock


def head(method: str, target: str, **headers: object) -> bytes:
    """The head of a request."""
    named = {"Host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items()), "", ""]
    return "\r\n".join(lines).encode()


async def bomb(address: str, port: int) -> None:
    """Post a body that unpacks to a thousand times its size, on every route that takes bodies."""
    loop = asyncio.get_running_loop()
    for method, target in (("POST", "/api/v1/records"), ("POST", "/records"), ("POST", "/record"), ("PUT", "/record")):
        sock = await connected(address, port)
        try:
            sent = head(
                method, target, Content_Type="application/json", Content_Encoding="gzip", Content_Length=len(BOMB)
            )
            await loop.sock_sendall(sock, sent + BOMB)
            status = (await loop.sock_recv(sock, 65_536))[9:12].decode() or "cut"
            happened[f"{method} {target} {status}"] += 1
        finally:
            sock.close()


async def values(address: str, port: int) -> None:
    """Post an array of very many small values, on every route that takes arrays."""
    loop = asyncio.get_running_loop()
    for target in ("/api/v1/records", "/records"):
        sock = await connected(address, port)
        try:
            sent = head("POST", target, Content_Type="application/json", Content_Length=len(VALUES))
            await loop.sock_sendall(sock, sent + VALUES)
            status = (await loop.sock_recv(sock, 65_536))[9:12].decode() or "cut"
            happened[f"POST {target} {status}"] += 1
        finally:
            sock.close()


async def unread(address: str, port: int) -> None:
    """Ask again and again on one connection, and read nothing."""
    sock = await connected(address, port, 4_096)
    try:
        while True:
            await asyncio.get_running_loop().sock_sendall(sock, head("GET", "/openapi.json") * 100)
            happened["hundreds sent"] += 1
    finally:
        sock.close()


async def stalled(address: str, port: int) -> None:
    """Ask for all records and read nothing of them."""
    sock = await connected(address, port, 4_096)
    try:
        await asyncio.get_running_loop().sock_sendall(sock, head("GET", "/records"))
        happened["asked"] += 1
        while await asyncio.get_running_loop().sock_recv(sock, 1):  # noqa: ASYNC110 there is nothing to wait for
            await asyncio.sleep(20)
    finally:
        sock.close()


async def drip(address: str, port: int) -> None:
    """Announce a large body and send a byte of it now and then."""
    sock = await connected(address, port)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(
            sock, head("POST", "/records", Content_Type="application/json", Content_Length=64 << 20) + b"["
        )
        happened["announced"] += 1
        while True:
            await loop.sock_sendall(sock, b" ")
            await asyncio.sleep(1)
    finally:
        sock.close()


async def idle(address: str, port: int) -> None:
    """Ask once and keep the connection."""
    sock = await connected(address, port)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(sock, head("GET", "/health_check"))
        happened["asked"] += 1
        while await loop.sock_recv(sock, 4_096):
            happened["answered"] += 1
    finally:
        sock.close()


ATTACKS: Final[dict[str, tuple[Attack, int, float]]] = {
    "bomb": (bomb, 2, 0.1),
    "values": (values, 4, 0.1),
    "unread": (unread, 4, 0.1),
    "stalled": (stalled, READERS, 0.1),
    "drip": (drip, 20, 0.1),
    "idle": (idle, IDLE, 2.0),
}
"""Each with the number of clients that do it at a time, from both addresses, and the seconds before they come back."""


async def again(attack: Attack, address: str, port: int, pause: float) -> None:
    """Attack without end."""
    while True:
        try:
            await attack(address, port)
        except OSError as error:
            happened[type(error).__name__] += 1
        await asyncio.sleep(pause)


async def main(name: str, port: int, seconds: float) -> None:
    """Attack from both addresses at a time."""
    attack, clients, pause = ATTACKS[name]
    tasks = [asyncio.create_task(again(attack, ADDRESSES[each % 2], port, pause)) for each in range(clients)]
    await asyncio.wait(tasks, timeout=seconds)
    sys.stdout.write(json.dumps(happened) + "\n")
    sys.stdout.flush()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
