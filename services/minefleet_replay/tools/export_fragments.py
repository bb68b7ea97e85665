"""Writes fragments as NumPy files that a notebook can read.

DIR/
├── index.json                    the run, its schema, and one entry per fragment
└── fragments/
    └── replay-00000012.npz       one array per leaf: `obs`, or `obs/image`, `action`, `reward`, ...; nothing pickled

An entry of `index.json` has stream, sequence, chunk, length, oldest_version, newest_version, uses, leased and file,
sorted by stream and sequence. The directory appears whole.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet.core.atomic_files import appearing
from minefleet.core.errors import NotFoundError
from minefleet.core.fragment import Fragment
from minefleet.core.tree import flatten, join
from minefleet.rpc.codec import decode
from minefleet.runs.run_yaml import Run, Shard
from minefleet_replay.engine.memory_state import ReplayState, read_state
from minefleet_replay.engine.verified_fragment_reads import ReadItem, read
from minefleet_replay.state.chunk import Chunk
from minefleet_replay.state.chunk import FragmentEntry as Row
from minefleet_replay.state.limits import Limits, limits_of
from minefleet_replay.storage.payload_log import PayloadLog
from minefleet_replay.storage.rocksdb_store import DATABASE, Store
from minefleet_replay.tools.offline_store import locked, looking, payloads_in

INDEX = "index.json"
FRAGMENTS = "fragments"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportRequest:
    """The fragments to export."""

    stream: str = ""
    """Of one stream; of all when empty."""
    limit: int | None = None
    """At most so many fragments."""


def export(run: Run, shards: Sequence[Shard], target: Path, wanted: ExportRequest) -> dict[str, Any]:
    """Writes the fragments that can still be used. Returns a report.

    Raises:
        ConfigError: If there is something in the target, or it cannot be written.
        NotFoundError: If no fragment of the stream is stored.
    """
    with appearing(target) as aside:
        (aside / FRAGMENTS).mkdir()
        found = [entry for shard in shards for entry in _export(shard, limits_of(run, shard.index), aside, wanted)]
        found.sort(key=lambda entry: (entry["stream"], entry["sequence"]))
        entries = found[: wanted.limit]
        for entry in found[len(entries) :]:
            (aside / entry["file"]).unlink()
        if wanted.stream and not entries:
            raise NotFoundError(f"no fragment of stream {wanted.stream} is stored")
        head = {"run_dir": str(run.directory), "schema": run.fragment_schema.to_dict()}
        (aside / INDEX).write_text(json.dumps(head | {"fragments": entries}, indent=1) + "\n")
    return {"directory": str(target), "fragments": len(entries), "steps": sum(entry["length"] for entry in entries)}


def _export(shard: Shard, limits: Limits, aside: Path, wanted: ExportRequest) -> Iterator[dict[str, Any]]:
    with locked(shard.store), looking(shard.store / DATABASE, limits.max_bytes) as store:
        state = read_state(store, limits)
        for chunk, fragment in _chosen(state, wanted):
            file = f"{FRAGMENTS}/{shard.name}-{fragment.number:08d}.npz"
            length = _write(store, payloads_in(shard.store), ReadItem(chunk.name, fragment), aside / file)
            if length:
                yield _entry(chunk, fragment) | {"length": length, "file": file}


def _chosen(state: ReplayState, wanted: ExportRequest) -> list[tuple[Chunk, Row]]:
    found = [
        (chunk, fragment)
        for chunk in state.index
        for fragment in chunk.fragments
        if not fragment.corrupt and wanted.stream in ("", chunk.name.stream)
    ]
    return sorted(found, key=lambda pair: (pair[0].name, pair[1].sequence))[: wanted.limit]


def _write(store: Store, payloads: PayloadLog, item: ReadItem, file: Path) -> int:
    """Writes a fragment. Returns its steps; 0 when its bytes turn out to be corrupt."""
    (stored,) = read(store, payloads, [item])
    if stored is None:
        return 0
    header, pieces = stored
    decoded = decode(header, b"".join(pieces))
    np.savez(file, allow_pickle=False, **_arrays(decoded))
    return len(decoded)


def _arrays(fragment: Fragment) -> dict[str, NDArray[Any]]:
    parts = {field.name: getattr(fragment, field.name) for field in fields(fragment)}
    return {
        join(name, path): leaf
        for name, part in parts.items()
        if part is not None
        for path, leaf in flatten(part).items()
    }


def _entry(chunk: Chunk, fragment: Row) -> dict[str, Any]:
    return {
        "stream": chunk.name.stream,
        "sequence": fragment.sequence,
        "chunk": chunk.name.number,
        "oldest_version": fragment.oldest_version,
        "newest_version": fragment.newest_version,
        "uses": chunk.uses,
        "leased": chunk.leases > 0,
    }
