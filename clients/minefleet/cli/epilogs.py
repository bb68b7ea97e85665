"""The texts below the help of commands. What they show of keys is read when help is asked for."""

import textwrap

from minefleet.presets import presets

EPILOG = """\
CONFIG is one of:
  CartPole-v1         the id of any Gymnasium environment, also ALE/Pong-v5 and module:Id-v0;
                      settings are those of the preset that trains it, where there is one
  my.yaml, my.py      a file
  a preset            {presets}
  nothing             where env.id=... or env.generator=... is among the overrides

Keys are written as in seed=3 stop.env_steps=1e6 train_config.learning_rate=1e-4.
`minefleet config explain` lists all of them, `minefleet config explain KEY` says what one means."""
COMMON_KEYS = {
    "run": "seed stop.env_steps stop.minutes stop.episode_return eval_interval",
    "environment": "env.id env.kwargs env.wrappers.frame_stack",
    "actors": "rollout_config.num_rollout_workers rollout_config.worker_config.num_envs",
    "batches": (
        "rollout_config.fragment_length train_config.batch_size_per_gpu train_config.batches_per_iteration "
        "train_config.epochs_per_iteration"
    ),
    "PPO": (
        "train_config.learning_rate train_config.discount train_config.gae_lambda train_config.ppo_clip "
        "train_config.ppo_vf_coef train_config.entropy_bonus_coef"
    ),
    "policy": "policy.hidden_size policy.gru_size",
}
"""Keys that people turn most, by what they are of."""
KEY_WIDTH, MEANING_WIDTH = 42, 60


def describe_configs() -> str:
    """CONFIG and keys, for commands that take them."""
    names = textwrap.fill(", ".join(presets()), 100, initial_indent=" " * 22, subsequent_indent=" " * 22).strip()
    return EPILOG.format(presets=names)


def describe_common_keys() -> str:
    """The keys that people turn most, one a line, with their defaults and the beginnings of their meanings."""
    from minefleet.config.key_docs import key_docs

    docs = {key.path: key for key in key_docs()}
    lines = ["\n\nKeys that people turn most, with the defaults where no preset has others:"]
    for group, paths in COMMON_KEYS.items():
        lines.append(f"  {group}")
        for key in (docs[path] for path in paths.split()):
            meaning = textwrap.shorten(key.meaning, MEANING_WIDTH, placeholder=" …")
            lines.append(f"    {f'{key.path}={key.default}':{KEY_WIDTH}}  {meaning}")
    return "\n".join(lines)


def describe_live_keys() -> str:
    """The keys that can be changed while a run goes, one a line, with their defaults."""
    from minefleet.config.key_docs import key_docs

    keys = [f"  {key.path}={key.default}" for key in key_docs() if key.is_live]
    return "\n".join(["Keys that can be changed, with their defaults:", *keys])
