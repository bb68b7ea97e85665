"""Plays worlds for an actor of minefleet: a file to copy, which needs grpcio and NumPy and nothing of minefleet.

    from world_client import play
    play("learner.lab:7003", [World(), World()])

A world has `reset(seed)`, which returns an observation, and `step(action)`, which returns observation, reward,
terminated and truncated. Observations and actions are arrays by the path of their leaf, as in {"image": ...,
"compass": ...}, or {"": ...} where the space is no dictionary. `docs/hosts.md` has the rest.
"""

import json
import queue
import struct

import grpc
import numpy as np

WIRE_VERSION = 6
OPTIONS = (
    ("grpc.max_receive_message_length", 2**24),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 15_000),
)
CODEC_NONE = 1


def play(actor, worlds, name="world", channel=None):
    """Plays until the actor ends the stream, which raises `grpc.RpcError` where it refuses.

    Args:
        actor: `host:port`.
        worlds: One object each; they are stepped in turn.
        name: For the actor's log.
        channel: A channel with certificates, where the fleet has some.
    """
    said = queue.SimpleQueue()
    hello = number(1, WIRE_VERSION) + data(2, name.encode()) + number(3, len(worlds))
    said.put(data(1, hello))
    channel = channel or grpc.insecure_channel(actor, OPTIONS)
    answers = channel.stream_stream("/minefleet.v1.WorldsService/Play")(iter(said.get, None))
    welcome = read(read(next(answers))[1][0])
    schema = json.loads(welcome[2][0])
    try:
        for answer in answers:
            for command in read(read(answer)[2][0]).get(1, []):
                said.put(data(2, data(1, obey(read(command), worlds, schema))))
    finally:
        said.put(None)


def obey(command, worlds, schema):
    """Carries a command out; returns the bytes of its result. A world that raises has failed, and is reset next."""
    world = command.get(1, [0])[0]
    result = number(1, world) + number(3, CODEC_NONE)
    try:
        if 2 in command:
            leaves = zip(schema["action"].items(), command[2], strict=True)
            action = {path: np.frombuffer(part, leaf["dtype"]).reshape(leaf["shape"]) for (path, leaf), part in leaves}
            obs, reward, terminated, truncated = worlds[world].step(action)
            result += real(4, reward) + number(5, terminated) + number(6, truncated)
        else:
            obs = worlds[world].reset(command.get(3, [None])[0])
        for path, leaf in schema["obs"].items():
            result += data(2, np.ascontiguousarray(obs[path], leaf["dtype"]).tobytes())
    except Exception as error:  # noqa: BLE001  # A world may raise anything.
        return number(1, world) + data(9, b"exception") + data(10, repr(error).encode())
    return result


# What follows is protobuf, as far as it is needed: https://protobuf.dev/programming-guides/encoding


def varint(value):
    """An unsigned number, seven bits a byte."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def number(field, value):
    """A field that holds a number, or true or false."""
    return varint(field << 3) + varint(int(value))


def data(field, value):
    """A field that holds bytes, a text or a message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def real(field, value):
    """A field that holds a float."""
    return varint(field << 3 | 5) + struct.pack("<f", value)


def read(message):
    """The values of a message by field, each a list: numbers and bytes."""
    fields, at = {}, 0

    def take():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(message):
        key = take()
        if key & 7 == 0:
            value = take()
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            size = take() if size is None else size
            value, at = bytes(message[at : at + size]), at + size
        fields.setdefault(key >> 3, []).append(value)
    return fields
