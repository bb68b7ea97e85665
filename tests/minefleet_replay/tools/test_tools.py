"""The tools, and what they say of a store. `stopped_run` is a run directory that a server has left."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from minefleet.config import DatabaseConfig
from minefleet.config.replay_partitioning import spread
from minefleet.core.errors import NotFoundError
from minefleet.core.fragment import Fragment
from minefleet.rpc.codec import encode
from minefleet.v1 import fragment_pb2
from minefleet_replay.engine.append import FragmentUpload
from minefleet_replay.engine.metrics import ReplayMetrics
from minefleet_replay.engine.open_replay import open_replay
from minefleet_replay.state.limits import limits_of
from minefleet_replay.tools.__main__ import main

STEPS = 5
EXAMPLE = Path(__file__).parents[3] / "examples" / "replay_notebook.py"

Tool = Callable[..., "Done"]


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a tool."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Tool:
    def run(run: Any, name: str, *arguments: str) -> Done:
        capsys.readouterr()
        code = main([name, "--run-dir", str(run.directory), *arguments])
        return Done(code, *capsys.readouterr())

    return run


def fragment_of(stream: str, sequence: int) -> Fragment:
    """Episodes of 8 steps; the observation is an image whose pixels count the steps."""
    steps = np.arange(sequence * STEPS, (sequence + 1) * STEPS)
    ends = steps % 8 == 7
    cuts = np.array([*np.flatnonzero(ends[:-1]), STEPS - 1], np.int32)
    image = np.broadcast_to(steps.astype(np.uint8)[:, None, None, None], (STEPS, 4, 4, 3))
    return Fragment(
        obs={"image": image, "needle": np.zeros((STEPS, 2), np.float32)},
        action=np.zeros(STEPS, np.int64),
        reward=np.ones(STEPS, np.float32),
        terminated=np.zeros(STEPS, bool),
        truncated=ends,
        first=steps % 8 == 0,
        crash=np.zeros(STEPS, bool),
        behaviour_logp=np.zeros(STEPS, np.float32),
        behaviour_value=steps.astype(np.float32),
        next_value=steps.astype(np.float32) + 1,
        policy_version=np.ones(STEPS, np.uint32),
        cut_index=cuts,
        cut_obs={"image": image[cuts], "needle": np.zeros((len(cuts), 2), np.float32)},
        recurrent_state={},
    )


def packed(server: Any, stream: str, sequence: int) -> Any:
    header = fragment_pb2.FragmentHeader(
        run_id="run-1",
        name=fragment_pb2.FragmentName(stream=stream, sequence=sequence),
        schema_fingerprint=server.run.schema.fingerprint,
        chunk=sequence,
        chunk_start=sequence,
        closes_chunk=True,
    )
    return encode(header, fragment_of(stream, sequence))


@pytest.fixture
def stopped_run(make_server: Callable[..., Any]) -> Any:
    """A run with fragments of two streams, of which one has been trained on."""
    server = make_server(max_reuse=1)
    server.run.write()
    with server.serve(), server.client() as client:
        client.append([packed(server, stream, sequence) for stream in ("a", "b") for sequence in range(4)])
        client.lease(1, steps=2 * STEPS, use_version=1, wait_s=5.0, order="oldest")
        client.ack(1)
    return server.run


def test_stats_say_what_is_held(tool: Tool, stopped_run: Any) -> None:
    (shard,) = json.loads(tool(stopped_run, "stats").stdout)["shards"]
    assert (shard["appended_fragments"], shard["live_fragments"], shard["trained_fragments"]) == (8, 6, 2)
    assert (shard["held_chunks"], shard["ready_chunks"], shard["known_streams"]) == (6, 6, 2)
    assert shard["stored_raw_bytes"] > shard["stored_bytes"] == shard["held_payload_bytes"] > 0
    assert (shard["staleness"], shard["uses"]) == ({"0": 6}, {"0": 6})


def test_why_dropped_tells_what_left_and_when(tool: Tool, stopped_run: Any) -> None:
    (shard,) = json.loads(tool(stopped_run, "why-dropped", "--limit", "9").stdout)["shards"]
    departures = sorted((one["stream"], *one["sequences"], one["reason"], one["uses"]) for one in shard["departures"])
    assert departures == [("a", 0, "trained", 1), ("a", 1, "trained", 1)]
    assert shard["departures"][0]["left_at"][4] == "-"
    (shard,) = json.loads(tool(stopped_run, "why-dropped", "--limit", "9", "--stream", "b").stdout)["shards"]
    assert shard["departures"] == []
    unknown = tool(stopped_run, "why-dropped", "--limit", "9", "--stream", "z")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "knows nothing of stream z" in unknown.stderr


def test_replay_itself_says_why_fragments_left(make_server: Callable[..., Any]) -> None:
    server = make_server(max_reuse=1)
    with server.serve(), server.client() as client:
        client.append([(server.header("s", sequence), b"payload") for sequence in range(3)])
        client.lease(1, steps=2, use_version=1, wait_s=5.0, order="oldest")
        client.ack(1)
        departures = client.why_dropped(limit=5)
        assert sorted((one.stream, *one.sequences, one.reason, one.uses) for one in departures) == [
            ("s", 0, "trained", 1),
            ("s", 1, "trained", 1),
        ]
        assert len(client.why_dropped("s", 1)) == 1
        with pytest.raises(NotFoundError):
            client.why_dropped("z")


def test_fsck_and_repair_end_with_what_they_found(tool: Tool, stopped_run: Any) -> None:
    assert tool(stopped_run, "fsck").returncode == 0
    (file,) = (stopped_run.replay / "payloads").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    found = tool(stopped_run, "fsck")
    assert found.returncode == 1
    assert "fragment b/3" in json.loads(found.stdout)["shards"][0]["faults"][0]


def test_an_export_holds_every_live_fragment_as_it_was(tool: Tool, stopped_run: Any, tmp_path: Path) -> None:
    done = tool(stopped_run, "export", "--out", str(tmp_path / "out"))
    assert json.loads(done.stdout)["fragments"] == 6
    entries = json.loads((tmp_path / "out" / "index.json").read_text())["fragments"]
    names = [(entry["stream"], entry["sequence"]) for entry in entries]
    assert names == [("a", 2), ("a", 3), ("b", 0), ("b", 1), ("b", 2), ("b", 3)]
    for entry in entries:
        original = fragment_of(entry["stream"], entry["sequence"])
        with np.load(tmp_path / "out" / entry["file"], allow_pickle=False) as arrays:
            assert np.array_equal(arrays["obs/image"], original.obs["image"])
            assert np.array_equal(arrays["reward"], original.reward)
            assert entry["length"] == len(arrays["first"]) == STEPS


def test_an_export_may_be_of_one_stream_and_limited(tool: Tool, stopped_run: Any, tmp_path: Path) -> None:
    done = tool(stopped_run, "export", "--out", str(tmp_path / "out"), "--stream", "b", "--limit", "3")
    assert json.loads(done.stdout) | {"directory": ""} == {
        "run_dir": str(stopped_run.directory),
        "directory": "",
        "fragments": 3,
        "steps": 3 * STEPS,
    }


def test_an_export_leaves_nothing_when_it_is_refused(tool: Tool, stopped_run: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tool(stopped_run, "export", "--out", str(out), "--stream", "z").returncode == 1
    assert not out.exists() and not list(tmp_path.glob(".out*"))
    out.mkdir()
    (out / "mine").write_text("mine")
    refused = tool(stopped_run, "export", "--out", str(out))
    assert refused.returncode == 2 and "is not empty" in refused.stderr
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_the_example_notebook_reads_an_export(tool: Tool, stopped_run: Any, tmp_path: Path) -> None:
    tool(stopped_run, "export", "--out", str(tmp_path / "out"))
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        env={"MPLBACKEND": "Agg", "MPLCONFIGDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "6 fragments, 30 steps of 2 streams" in done.stdout
    assert "2 whole episodes, mean return 8.00" in done.stdout
    assert (tmp_path / "out" / "replay.png").stat().st_size > 10_000


def test_replay_tools_look_at_and_export_all_shards_together(
    tool: Tool, make_server: Callable[..., Any], tmp_path: Path
) -> None:
    server = make_server(database_config=DatabaseConfig(num_shards=2))
    server.run = replace(server.run, config=spread(server.run.config))
    server.run.write()
    for shard, stream in zip(server.run.shards, ("b", "a"), strict=True):
        replay = open_replay(shard.store, limits_of(server.run, shard.index), ReplayMetrics(CollectorRegistry()))
        replay.bind("run-1")
        for sequence in range(2):
            header, payload = packed(server, stream, sequence)
            replay.append(FragmentUpload(header=header, pieces=[payload]))
        replay.close()
    shards = json.loads(tool(server.run, "stats").stdout)["shards"]
    assert [(shard["name"], shard["live_fragments"]) for shard in shards] == [("replay-0", 2), ("replay-1", 2)]
    assert tool(server.run, "fsck").returncode == 0
    tool(server.run, "export", "--out", str(tmp_path / "out"), "--limit", "3")
    entries = json.loads((tmp_path / "out" / "index.json").read_text())["fragments"]
    assert [(entry["stream"], entry["sequence"]) for entry in entries] == [("a", 0), ("a", 1), ("b", 0)]
    assert len(list((tmp_path / "out" / "fragments").iterdir())) == 3
