"""The messages of MineRL 1.0 and MineStudio to their engine, and their frames: MalmoEnv 0.37.

Every message is its length as an unsigned 32-bit big-endian integer, then so many bytes.

    message                                    reply
    <MalmoEnv0.37.0/>                          none
    <MissionInit ...>, then a token            u32: 1
    <Peek/>                                    picture, info, i8: done
    <StepClient0>commands</StepClient0 >       picture, !dbb: reward, done, sent; info
    <StepServer></StepServer>                  none
    <Quit/>, <Exit>NOW</Exit>                  u32: 1
    <Find>token</Find>                         u32: port
    <Echo>                                     the message
    <Disconnect/>                              none; the connection ends

The token is `uid:role:0:agents:synchronous`, then `:seed` where one was set.
"""

import re
import socket
import struct
from dataclasses import dataclass

HELLO = "<MalmoEnv0.37.0"
OK = struct.pack("!I", 1)
TOKEN_FIELDS_BEFORE_SEED = 5
WIDTH, HEIGHT, BIOME = 640, 360, "forest"
"""Of a mission that does not say."""
_LENGTH = struct.Struct("!I")
_SLOT = re.compile(r'<InventoryObject\s+slot="(\d+)"\s+type="([^"]+)"\s+quantity="(\d+)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Mission:
    """The engine's part of a mission: the rest of it is not played."""

    width: int
    height: int
    biome: str
    inventory: tuple[tuple[int, str, int], ...] = ()
    """Slot, item and quantity of each stack at the start."""
    done_on_death: bool = False


def receive(connection: socket.socket) -> bytes:
    """Waits for one message.

    Raises:
        EOFError: If the other side has closed the connection.
    """
    return _exactly(connection, *_LENGTH.unpack(_exactly(connection, _LENGTH.size)))


def send(connection: socket.socket, *messages: bytes) -> None:
    """Sends messages, each in its frame."""
    connection.sendall(b"".join(part for each in messages for part in (_LENGTH.pack(len(each)), each)))


def read_mission(xml: str) -> Mission:
    """Reads what the engine plays of a mission."""
    return Mission(
        width=_number(xml, "Width", WIDTH),
        height=_number(xml, "Height", HEIGHT),
        biome=_text(xml, "PreferredSpawnBiome") or BIOME,
        inventory=tuple((int(slot), item, int(quantity)) for slot, item, quantity in _SLOT.findall(xml)),
        done_on_death="<DoneOnDeath" in xml,
    )


def read_seed(token: str) -> int | None:
    """The seed in a mission's token; None where it has none."""
    fields = token.split(":")
    return int(fields[TOKEN_FIELDS_BEFORE_SEED]) if len(fields) > TOKEN_FIELDS_BEFORE_SEED else None


def read_commands(message: str) -> dict[str, str]:
    """The commands of a step, one per line, by their verb."""
    body = message[message.index(">") + 1 : message.rindex("</")]
    lines = (line.partition(" ") for line in body.split("\n") if line)
    return {verb: rest for verb, _, rest in lines}


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _number(xml: str, tag: str, default: int) -> int:
    text = _text(xml, tag)
    return int(text) if text else default


def _text(xml: str, tag: str) -> str:
    found = re.search(rf"<{tag}>\s*([^<]*?)\s*</{tag}>", xml)
    return found[1] if found else ""
