"""Services: who is at work, how calls fare, and what disks and processes come to."""

from deploy.grafana.panels import Page, Panel, chart, figure, states
from deploy.grafana.queries import chosen, counted, largest, quantile, rate, smallest, total

METHOD = "job, grpc_method"
METHOD_LEGEND = "{{job}} {{grpc_method}}"
WAITING = "!~Watch|Lease"
"""They wait by design."""
CODES = {"draining": 1, "waiting": 2, "starting": 3, "paused": 4, "running": 5}
COLORS = {"draining": "purple", "waiting": "orange", "starting": "yellow", "paused": "blue", "running": "green"}
PROCESS = "{{job}} {{instance}}"


def page() -> Page:
    """The dashboard."""
    return Page(
        uid="minefleet-services",
        title="minefleet / Services",
        text="Who is at work, how calls fare, and what disks and processes come to.",
        metric="minefleet_build_info",
        rows=[
            ("Is everybody at work?", work()),
            ("How do calls fare?", calls()),
            ("Is the store in order?", store()),
            ("Is there room on the disks?", disks()),
            ("What do processes take?", processes()),
        ],
    )


def work() -> list[Panel]:
    """Who answers, and what it says."""
    codes = " or ".join(f"{chosen('minefleet_state', state=name)} * {code}" for name, code in CODES.items())
    return [
        figure("Targets up", "That Prometheus reaches.", f"sum({chosen('up')})", unit="none"),
        figure(
            "Targets down",
            "That it does not.",
            f"count({chosen('up')}) - sum({chosen('up')})",
            unit="none",
            steps={1: "red"},
        ),
        figure(
            "Starts",
            "Of processes again, in the last hour.",
            f"sum(changes({chosen('process_start_time_seconds')}[1h]))",
            unit="none",
            steps={3: "orange"},
        ),
        figure("Epoch", "Times that a learner took over this run.", largest("minefleet_parameters_epoch"), unit="none"),
        figure(
            "Builds",
            "Roles by version; a fleet should have one.",
            f"count by (version) ({chosen('minefleet_build_info')})",
            unit="none",
            span=8,
            legend="{{version}}",
        ),
        states(
            "States",
            "What each role says of itself. A pause is on purpose; a wait is for a peer, or for room on a disk.",
            (f"max by (job, instance) ({codes})", PROCESS),
            names=[(code, code, name, COLORS[name]) for name, code in CODES.items()],
        ),
    ]


def calls() -> list[Panel]:
    """RPCs."""
    started = f"sum by ({METHOD}) ({chosen('grpc_server_started_total')})"
    handled = f"sum by ({METHOD}) ({chosen('grpc_server_handled_total')})"
    return [
        chart("Calls", "Begun, by method.", (rate("grpc_server_started_total", METHOD), METHOD_LEGEND), unit="reqps"),
        chart(
            "Calls that do not end well",
            "By status. CANCELLED ends a watch; callers of UNAVAILABLE, RESOURCE_EXHAUSTED and NOT_FOUND try again; "
            "INTERNAL, UNKNOWN and DATA_LOSS are faults.",
            (
                rate("grpc_server_handled_total", "job, grpc_method, grpc_code", grpc_code="!=OK"),
                METHOD_LEGEND + " {{grpc_code}}",
            ),
            unit="reqps",
        ),
        chart(
            "Calls under way",
            "Begun and not ended. A Watch is always under way, a Lease mostly.",
            (f"{started} - ({handled} or {started} * 0)", METHOD_LEGEND),
            unit="none",
        ),
        chart(
            "Time of a call",
            "Median, by method, without those that wait by design.",
            (quantile(0.5, "grpc_server_handling_seconds", METHOD, grpc_method=WAITING), METHOD_LEGEND),
            unit="s",
        ),
        chart(
            "Time of a slow call",
            "95 % are faster, by method, without those that wait by design.",
            (quantile(0.95, "grpc_server_handling_seconds", METHOD, grpc_method=WAITING), METHOD_LEGEND),
            unit="s",
        ),
        chart(
            "Calls that replay refuses",
            "By reason. `overloaded` callers try again; `fenced` ones are learners that were taken over.",
            (rate("minefleet_replay_refused_calls_total", "reason"), "{{reason}}"),
            unit="reqps",
        ),
    ]


def store() -> list[Panel]:
    """The ledger, durability and RocksDB."""
    stopped = "=~is-write-stopped|background-errors|num-running-compactions"
    return [
        chart(
            "Faults",
            "Fragments that the ledger does not account for; fragments and tensors found damaged within an hour.",
            (largest("minefleet_replay_unaccounted_fragments"), "unaccounted"),
            (counted("minefleet_replay_dropped_fragments_total", "1h", reason="corrupt"), "corrupt fragments"),
            (counted("minefleet_parameters_corrupt_reads_total", "1h"), "corrupt tensors"),
            unit="none",
            bounds=(None, None),
            steps={1: "red"},
        ),
        chart(
            "What a power cut would take",
            "The time for which appends have been acked and not synced; about a second with durability: process.",
            (largest("minefleet_replay_unsynced_seconds", "instance"), "{{instance}}"),
            unit="s",
            steps={30: "red"},
        ),
        chart(
            "Writes not synced",
            "Of replay.",
            (total("minefleet_replay_unsynced_writes", "instance"), "{{instance}}"),
            unit="none",
        ),
        chart(
            "RocksDB's size",
            "Tables on disk and buffers in memory. Payloads lie beside it.",
            (total("minefleet_replay_rocksdb_properties", property="total-sst-files-size"), "tables"),
            (total("minefleet_replay_rocksdb_properties", property="size-all-mem-tables"), "buffers"),
            unit="bytes",
            span=12,
        ),
        chart(
            "RocksDB's troubles",
            "Compactions are normal; a write stop or an error in the background is not.",
            (largest("minefleet_replay_rocksdb_properties", "property", property=stopped), "{{property}}"),
            unit="none",
            span=12,
        ),
    ]


def disks() -> list[Panel]:
    """Free shares, and what the stores take."""
    return [
        chart(
            "Free share of disks",
            "Of the run directory, as each role sees it, and of replay's store. Replay keeps a reserve and refuses "
            "appends before it is empty.",
            (_free("minefleet_run_disk", "job"), "run, {{job}}"),
            (_free("minefleet_replay_disk"), "store of replay"),
            unit="percentunit",
            span=12,
            bounds=(0, 1),
        ),
        chart(
            "What is stored",
            "Payloads and videos of replay, tensors of parameters.",
            (total("minefleet_replay_payload_disk_bytes"), "payloads"),
            (total("minefleet_replay_video_bytes"), "videos"),
            (total("minefleet_parameters_stored_bytes"), "tensors"),
            unit="bytes",
            span=12,
            stacked=True,
        ),
    ]


def processes() -> list[Panel]:
    """CPU, memory and files. Memory and files are without environments, which are processes of their own."""
    return [
        chart(
            "CPU",
            "Cores, of each role with all processes below it.",
            (rate("minefleet_processor_seconds_total", "job, instance"), PROCESS),
            unit="cores",
            span=6,
        ),
        chart(
            "Busy cores",
            "Share of the cores that a role may use, whoever uses them. Near 1 the machine limits.",
            (
                f"{rate('minefleet_machine_busy_seconds_total', 'job, instance')} / "
                + total("minefleet_machine_cores", "job, instance"),
                PROCESS,
            ),
            unit="percentunit",
            bounds=(0, 1),
            span=6,
            steps={0.95: "orange"},
        ),
        chart(
            "Memory",
            "Resident.",
            (total("process_resident_memory_bytes", "job, instance"), PROCESS),
            unit="bytes",
            span=6,
        ),
        chart(
            "Open files",
            "Share of those that the process may open.",
            (f"{total('process_open_fds', 'job, instance')} / {total('process_max_fds', 'job, instance')}", PROCESS),
            unit="percentunit",
            bounds=(0, 1),
            span=6,
            steps={0.8: "red"},
        ),
    ]


def _free(disk: str, by: str = "") -> str:
    return smallest(f"{disk}_free_bytes", by) + " / " + smallest(f"{disk}_size_bytes", by)
