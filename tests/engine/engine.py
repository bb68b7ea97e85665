"""A stand-in for Minecraft: the process that MineRL 1.0 and MineStudio start, and talk to over a socket.

    python -m engine.engine --envPort=PORT

It takes the arguments of `java` and of MineRL's `launchClient.sh` and ignores all but the port. One world, which the
newest mission made; connections come and go.
"""

import os
import re
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from typing import NamedTuple

from . import marks, protocol
from .chat import obey
from .drawing import draw
from .faults import Faults, read_faults
from .report import report
from .world import World, new_world

PORT = re.compile(r"--?(?:envPort[= ]|port )(\d+)")
READY = "***** Start MalmoEnvServer on port {}\nCLIENT enter state: DORMANT"
RESULT = struct.Struct("!dbb")
GARBAGE = (b"", b"\xff\xff", b"not JSON")


class Answer(NamedTuple):
    """The result of a step or a peek."""

    picture: bytes
    info: bytes
    done: bool


@dataclass(slots=True)
class Engine:
    """One life of the engine."""

    faults: Faults
    identity: int | None = None
    """Number that it draws into its pictures; None where it draws none."""
    world: World | None = None
    missions: int = 0
    steps: int = 0

    def begin(self, xml: str, token: str) -> None:
        """Makes the world of a mission, of its seed or else of the next one."""
        seed = protocol.read_seed(token)
        self.world = new_world(protocol.read_mission(xml), self.missions if seed is None else seed)
        self.missions += 1

    def step(self, message: str) -> Answer:
        """Lets a tick pass."""
        self.steps += 1
        self.faults.at_step(self.steps)
        commands = protocol.read_commands(message)
        world = self._played()
        world.step(commands)
        if "chat" in commands:
            obey(world, commands["chat"])
        return self.look(commands)

    def look(self, commands: dict[str, str] | None = None) -> Answer:
        """Shows the world as it is."""
        world = self._played()
        picture = draw(world)
        if self.identity is not None:
            marks.draw(picture, marks.Mark(self.identity, self.steps + self.missions))
        done = world.dead and world.mission.done_on_death
        return Answer(picture[::-1].tobytes(), report(world, commands or {}), done)

    def _played(self) -> World:
        if self.world is None:
            raise RuntimeError("a step or a peek came before any mission")
        return self.world


def serve(engine: Engine, connection: socket.socket) -> None:
    """Answers one connection until it ends."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        try:
            if protocol.receive(connection).decode().startswith(protocol.HELLO):
                while answer(engine, connection, protocol.receive(connection).decode()):
                    pass
        except (EOFError, OSError):
            return


def answer(engine: Engine, connection: socket.socket, message: str) -> bool:
    """Answers one message; says whether the connection goes on."""
    match message[1:].partition(">")[0].split()[0].rstrip("/"):
        case "StepClient0" | "StepClient2":
            _answer_step(engine, connection, message)
        case "Peek":
            shown = engine.look()
            protocol.send(connection, shown.picture, shown.info, struct.pack("!b", shown.done))
        case "MissionInit":
            engine.begin(message, protocol.receive(connection).decode())
            protocol.send(connection, protocol.OK)
        case "Quit":
            protocol.send(connection, protocol.OK)
        case "Exit":
            protocol.send(connection, protocol.OK)
            os._exit(0)
        case "Find":
            protocol.send(connection, struct.pack("!I", connection.getsockname()[1]))
        case "Echo":
            protocol.send(connection, message.encode())
        case "Disconnect":
            return False
    return True


def listen(port: int) -> socket.socket:
    """Listens at a port, or at a free one where that is taken, as Minecraft does."""
    try:
        return socket.create_server(("", port))
    except OSError:
        return socket.create_server(("", 0))


def main() -> None:
    faults = read_faults(os.environ)
    faults.at_start()
    identity = int.from_bytes(os.urandom(3), "big") if os.environ.get("ENGINE_MARK") else None
    engine = Engine(faults, identity)
    wanted = PORT.search(" ".join(sys.argv[1:]))
    with listen(int(wanted[1]) if wanted else 0) as listener:
        sys.stdout.write(READY.format(listener.getsockname()[1]) + "\n")
        sys.stdout.flush()
        while True:
            threading.Thread(target=serve, args=(engine, listener.accept()[0]), daemon=True).start()


def _answer_step(engine: Engine, connection: socket.socket, message: str) -> None:
    shown = engine.step(message)
    if engine.steps == engine.faults.garbage_at:
        protocol.send(connection, *GARBAGE)
        return
    protocol.send(connection, shown.picture, RESULT.pack(0.0, shown.done, 1), shown.info)


if __name__ == "__main__":
    main()
