"""Actors: how fast each replica is, what its slots wait for, and how its environments fail."""

from deploy.grafana.panels import Page, Panel, chart, figure
from deploy.grafana.queries import average, chosen, counted, quantile, rate, total

BY = "instance"
LEGEND = "{{instance}}"
STARTS = f"sum(changes({chosen('process_start_time_seconds')}[1h]))"


def page() -> Page:
    """The dashboard."""
    return Page(
        uid="minefleet-actors",
        title="minefleet / Actors",
        text="How fast each replica is, what its slots wait for, and how its environments fail.",
        metric="minefleet_actor_slots",
        rows=[
            ("How fast are they?", speed()),
            ("What do slots wait for?", waits()),
            ("Do environments fail?", failures()),
            ("Is the inference fast?", inference()),
            ("What do the processes take, and do they last?", processes()),
        ],
    )


def speed() -> list[Panel]:
    """Steps."""
    return [
        figure("Actors", "That answer.", f"count({chosen('minefleet_actor_slots')})", unit="none"),
        figure("Slots", "Environments of all actors.", total("minefleet_actor_slots"), unit="none"),
        figure("Steps", "Of all actors.", rate("minefleet_actor_env_steps_total"), unit="cps"),
        figure("Failures", "Of environments, in the last hour.", counted("minefleet_actor_env_failures_total", "1h")),
        figure(
            "Resting slots",
            "Failed too often in a row.",
            total("minefleet_actor_resting_slots"),
            unit="none",
            steps={1: "orange"},
        ),
        figure("Starts", "Of actors again, in the last hour.", STARTS, unit="none", steps={3: "orange"}),
        chart(
            "Steps of each actor",
            "Replicas of one kind of machine should be alike.",
            (rate("minefleet_actor_env_steps_total", BY), LEGEND),
            unit="cps",
            span=12,
        ),
        chart(
            "Time of an environment step",
            "From the action until the answer was taken.",
            (quantile(0.5, "minefleet_actor_env_step_seconds"), "median"),
            (quantile(0.95, "minefleet_actor_env_step_seconds"), "95 %"),
            (quantile(0.99, "minefleet_actor_env_step_seconds"), "99 %"),
            unit="s",
            span=12,
        ),
    ]


def waits() -> list[Panel]:
    """Slots that do not act."""
    lacking = total("minefleet_actor_held_slots", BY, reason="=~room|weights")
    return [
        chart(
            "Slots that wait",
            "For a grant: replay has enough. For room: replay does not take what is queued. For weights: parameters "
            "gives no newer ones.",
            (total("minefleet_actor_held_slots", "reason"), "{{reason}}"),
            unit="none",
        ),
        chart(
            "Share of slots that pause",
            "For want of room or weights, by actor. Above a half an alert comes.",
            (f"{lacking} / {total('minefleet_actor_slots', BY)}", LEGEND),
            unit="percentunit",
            bounds=(0, 1),
            steps={0.5: "red"},
        ),
        chart(
            "Slots that reset or rest",
            "A reset is the start of an episode; a slot rests after too many failures in a row.",
            (total("minefleet_actor_resetting_slots"), "reset"),
            (total("minefleet_actor_resting_slots"), "rest"),
            unit="none",
        ),
        chart(
            "Fragments that wait to be sent",
            "By actor; at most to_send_queue_size and one per slot.",
            (total("minefleet_actor_queued_fragments", BY), LEGEND),
            unit="none",
            span=12,
        ),
        chart(
            "Version in use",
            "By actor. Who lags behind does not get weights.",
            (f"max by (instance) ({chosen('minefleet_actor_policy_version')})", LEGEND),
            unit="none",
            span=12,
            bounds=(None, None),
        ),
    ]


def failures() -> list[Panel]:
    """Environments that were replaced."""
    return [
        chart(
            "Failures by kind",
            "In the last five minutes; docs/supervision.md says what the kinds are.",
            (counted("minefleet_actor_env_failures_total", "5m", "kind"), "{{kind}}"),
            unit="none",
            stacked=True,
        ),
        chart(
            "Failures by actor",
            "In the last five minutes.",
            (counted("minefleet_actor_env_failures_total", "5m", BY), LEGEND),
            unit="none",
            stacked=True,
        ),
        chart(
            "Failures per million steps",
            "How fragile the environment is, however fast it is played.",
            (
                f"1e6 * {rate('minefleet_actor_env_failures_total')} / {rate('minefleet_actor_env_steps_total')}",
                "",
            ),
            unit="none",
        ),
    ]


def inference() -> list[Panel]:
    """The batches."""
    return [
        chart(
            "Time of a batch",
            "Of inference, all actors.",
            (quantile(0.5, "minefleet_actor_inference_seconds"), "median"),
            (quantile(0.95, "minefleet_actor_inference_seconds"), "95 %"),
            unit="s",
        ),
        chart(
            "Slots in a batch",
            "Mean, by actor. Near the number of slots, environments answer together.",
            (average("minefleet_actor_inference_batch_size", BY), LEGEND),
            unit="none",
        ),
        chart(
            "Share of time in inference",
            "By actor. Near 1 the inference limits: a GPU or fewer slots per actor help.",
            (rate("minefleet_actor_inference_seconds_sum", BY), LEGEND),
            unit="percentunit",
            steps={0.9: "orange"},
        ),
    ]


def processes() -> list[Panel]:
    """The actor's own process; its environments are processes of their own and not in these numbers."""
    return [
        chart(
            "Memory",
            "Resident, without the environments'.",
            (total("process_resident_memory_bytes", BY), LEGEND),
            unit="bytes",
        ),
        chart(
            "Starts by actor",
            "Within an hour.",
            (f"sum by (instance) (changes({chosen('process_start_time_seconds')}[1h]))", LEGEND),
            unit="none",
            steps={3: "orange"},
        ),
        chart(
            "Videos",
            "In the last hour, by what became of them, and frames that the encoder had no time for.",
            (counted("minefleet_actor_videos_total", "1h", "outcome"), "{{outcome}}"),
            (counted("minefleet_actor_video_frames_left_out_total", "1h"), "frames left out"),
            unit="none",
        ),
    ]
