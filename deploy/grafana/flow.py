"""Flow: experience and weights on their way round the ring, edge by edge, and the stage that limits them."""

from deploy.grafana.panels import Page, Panel, chart, figure
from deploy.grafana.queries import average, chosen, largest, quantile, rate, smallest, total

SLOTS = total("minefleet_actor_slots")
SLOT_SECONDS = "minefleet_actor_slot_seconds_total"
HELD = total("minefleet_actor_held_slots")
IDLE = (HELD, total("minefleet_actor_resetting_slots"), total("minefleet_actor_resting_slots"))


def page() -> Page:
    """The dashboard."""
    return Page(
        uid="minefleet-flow",
        title="minefleet / Flow",
        text="Experience and weights on their way round the ring: rates and waits on every edge, and what limits them.",
        metric="minefleet_build_info",
        rows=[
            ("What limits the run?", limit()),
            ("Actors to replay: does experience arrive?", arriving()),
            ("Replay: what is held, and what becomes of it?", held()),
            ("Replay to learner: how long do leases take?", leasing()),
            ("Learner to parameters to actors: do weights get through?", weights()),
        ],
    )


def limit() -> list[Panel]:
    """The stage that all others wait for."""
    waits, granted = largest("minefleet_learner_wait_ratio"), total("minefleet_actor_held_slots", reason="grant")
    return [
        figure("Steps taken", "By all actors.", rate("minefleet_actor_env_steps_total"), unit="cps"),
        figure(
            "Steps trained",
            "Unique ones.",
            f"sum(rate({chosen('minefleet_learner_trained_steps')}[$__rate_interval]))",
            unit="cps",
        ),
        figure("Learner waits", "Share of the last iteration.", waits, unit="percentunit"),
        figure(
            "Slots in environments",
            "Share of the slots' time in which they wait for a step or a reset. What holds the run up, and the key to "
            "turn, is said by `minefleet status`.",
            f"{rate(SLOT_SECONDS, waiting_for='environment')} / {rate(SLOT_SECONDS)}",
            unit="percentunit",
        ),
        figure("Slots without a grant", "Replay has enough for now.", f"{granted} / {SLOTS}", unit="percentunit"),
        figure("Newest version", "Of the weights.", largest("minefleet_parameters_newest_version"), unit="none"),
        chart(
            "What slots wait for",
            "Shares of the time of all slots. `grant` is for the learner, `room` for replay.",
            (
                f"{rate(SLOT_SECONDS, 'waiting_for')} / ignoring(waiting_for) group_left {rate(SLOT_SECONDS)}",
                "{{waiting_for}}",
            ),
            unit="percentunit",
            stacked=True,
            span=12,
            bounds=(0, 1),
        ),
        chart(
            "What the learner's loop spends its time on",
            "Shares. `fragments` is a wait for the actors, `replay` for what is being read, `weights` for versions "
            "that are not out.",
            (rate("minefleet_learner_loop_seconds_total", "spent_on"), "{{spent_on}}"),
            unit="percentunit",
            stacked=True,
            span=12,
            bounds=(0, 1),
        ),
        chart(
            "Share of its time that the learner waits for fragments",
            "Near 0 the learner limits, near 1 the actors.",
            (waits, ""),
            unit="percentunit",
            span=12,
            bounds=(0, 1),
            steps={0.2: "yellow", 0.5: "orange"},
        ),
        chart(
            "What the actors' slots do",
            "Slots without a grant are normal where the learner limits. `no room` and `old weights` are not: replay or "
            "parameters does not answer.",
            (f"{SLOTS} - {' - '.join(IDLE)}", "act"),
            (total("minefleet_actor_resetting_slots"), "reset"),
            (granted, "no grant"),
            (total("minefleet_actor_held_slots", reason="room"), "no room"),
            (total("minefleet_actor_held_slots", reason="weights"), "old weights"),
            (total("minefleet_actor_resting_slots"), "rest"),
            unit="none",
            span=12,
            stacked=True,
        ),
    ]


def arriving() -> list[Panel]:
    """Reserve and Append."""
    return [
        chart(
            "Fragments that arrive",
            "`duplicate` were sent again and stored once; `expired` came too late to be used.",
            (rate("minefleet_replay_appended_fragments_total", "outcome"), "{{outcome}}"),
            unit="cps",
        ),
        chart(
            "Bytes that arrive",
            "As packed by actors, and before.",
            (rate("minefleet_replay_appended_payload_bytes_total"), "packed"),
            (rate("minefleet_replay_appended_raw_bytes_total"), "unpacked"),
            unit="binBps",
        ),
        chart(
            "Chunks that actors ask for",
            "Those not granted are asked for again; many are normal where the learner limits.",
            (rate("minefleet_replay_reserved_chunks_total", granted="true"), "granted"),
            (rate("minefleet_replay_reserved_chunks_total", granted="false"), "not yet"),
            unit="cps",
        ),
        chart(
            "Fragments that wait at actors",
            "Sum over actors. It stays near 0 while replay keeps up.",
            (total("minefleet_actor_queued_fragments"), ""),
            unit="none",
        ),
        chart(
            "Time of an Append",
            "In replay, from the first message to the answer.",
            (quantile(0.5, "grpc_server_handling_seconds", grpc_method="Append"), "median"),
            (quantile(0.95, "grpc_server_handling_seconds", grpc_method="Append"), "95 %"),
            unit="s",
        ),
        chart(
            "Episodes and videos that arrive",
            "Records are stored whatever becomes of their fragments.",
            (rate("minefleet_replay_appended_episodes_total"), "episodes"),
            (rate("minefleet_replay_appended_videos_total", "outcome"), "videos {{outcome}}"),
            unit="cps",
        ),
    ]


def held() -> list[Panel]:
    """The store, the ledger and the limits."""
    return [
        chart(
            "Chunks",
            "Held and granted ones together stay below the room, which follows from max_reuse and max_staleness.",
            (total("minefleet_replay_held_chunks"), "held"),
            (total("minefleet_replay_granted_chunks"), "granted"),
            (total("minefleet_replay_room_chunks"), "room"),
            unit="none",
        ),
        chart(
            "Fragments held",
            "Of the ledger: free for a lease, or in one.",
            (total("minefleet_replay_ledger_fragments", "bucket", bucket="=~live|leased"), "{{bucket}}"),
            unit="none",
            stacked=True,
        ),
        chart(
            "Fragments that leave",
            "`trained` were used as often as they may. The others left before that: `stale`, `abandoned` by a resumed "
            "learner, `incomplete` or `late` chunks, `evicted` to make room, `corrupt`.",
            (rate("minefleet_replay_dropped_fragments_total", "reason"), "{{reason}}"),
            unit="cps",
        ),
        chart(
            "Staleness at use",
            "Versions between a chunk's oldest step and the update that uses it.",
            (average("minefleet_replay_lease_staleness_versions"), "mean"),
            (quantile(0.99, "minefleet_replay_lease_staleness_versions"), "99 %"),
            (largest("minefleet_replay_max_staleness_versions"), "max_staleness"),
            unit="none",
        ),
        chart(
            "Uses before",
            "Of the chunks that are leased.",
            (average("minefleet_replay_lease_uses_uses"), "mean"),
            (quantile(0.99, "minefleet_replay_lease_uses_uses"), "99 %"),
            (largest("minefleet_replay_max_reuse_uses"), "max_reuse"),
            unit="none",
        ),
        chart(
            "Bytes held",
            "Payloads that can still be used, the files of all payloads and of videos, and what the store may take.",
            (total("minefleet_replay_held_payload_bytes"), "usable"),
            (total("minefleet_replay_payload_disk_bytes"), "payload files"),
            (total("minefleet_replay_video_bytes"), "videos"),
            (total("minefleet_replay_max_bytes"), "max_bytes"),
            unit="bytes",
        ),
    ]


def leasing() -> list[Panel]:
    """Lease, Read and Ack."""
    return [
        chart(
            "Wait of a Lease",
            "Until there are enough chunks. It is short where the learner limits.",
            (quantile(0.5, "minefleet_replay_lease_wait_seconds"), "median"),
            (quantile(0.95, "minefleet_replay_lease_wait_seconds"), "95 %"),
            unit="s",
        ),
        chart(
            "Time that a lease is open",
            "From the grant to the Ack: an iteration, and what was read ahead.",
            (quantile(0.5, "minefleet_replay_lease_open_seconds"), "median"),
            (quantile(0.95, "minefleet_replay_lease_open_seconds"), "95 %"),
            (largest("minefleet_replay_oldest_lease_seconds"), "oldest open lease"),
            unit="s",
        ),
        chart("Open leases", "Neither acked nor released.", (total("minefleet_replay_open_leases"), ""), unit="none"),
    ]


def weights() -> list[Panel]:
    """Publish, Watch and Fetch."""
    return [
        chart(
            "Versions",
            "All of them should rise together. Who lags behind the newest is a step of the ring that does not get on.",
            (largest("minefleet_learner_policy_version"), "learner"),
            (largest("minefleet_parameters_newest_version"), "parameters"),
            (largest("minefleet_replay_newest_version"), "replay"),
            (smallest("minefleet_actor_policy_version"), "slowest actor"),
            (smallest("minefleet_parameters_oldest_running_version"), "slowest watcher"),
            unit="none",
            bounds=(None, None),
        ),
        chart(
            "Age of the newest version",
            "Every iteration publishes one.",
            (f"time() - max({chosen('minefleet_parameters_published_timestamp_seconds')} > 0)", ""),
            unit="s",
            steps={1800: "orange"},
        ),
        chart(
            "Time of a publish and of a fetch",
            "95 % take no longer.",
            (quantile(0.95, "minefleet_parameters_publish_seconds"), "publish"),
            (quantile(0.95, "minefleet_parameters_fetch_seconds"), "fetch"),
            unit="s",
        ),
        chart(
            "Bytes of weights",
            "`saved` need not travel, since the other side has these tensors already.",
            (rate("minefleet_parameters_publish_bytes_total"), "published"),
            (rate("minefleet_parameters_publish_saved_bytes_total"), "published, saved"),
            (rate("minefleet_parameters_fetch_bytes_total"), "fetched"),
            (rate("minefleet_parameters_fetch_saved_bytes_total"), "fetched, saved"),
            unit="binBps",
        ),
        chart(
            "Publishes",
            "Versions per second.",
            (rate("minefleet_parameters_publishes_total"), ""),
            unit="cps",
        ),
        chart(
            "Watchers, versions and wishes",
            "Open watches, one per actor and one of the evaluator; versions that can be fetched; wishes for videos "
            "that may be claimed.",
            (total("minefleet_parameters_watchers"), "watchers"),
            (total("minefleet_parameters_kept_versions"), "versions"),
            (total("minefleet_parameters_pending_wishes"), "wishes"),
            unit="none",
        ),
    ]
