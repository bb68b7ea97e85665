"""`docs/config.md` is what the code says, and every key of the seeds names a test that there is."""

import ast
from pathlib import Path

import pytest
import yaml
from docs.generate_config import NOTES, PAGE, page

from minefleet.config.key_docs import KeyDoc, key_docs

ROOT = Path(__file__).parent.parent
SEEDS = {
    "": "trainer_name detach_rollout_manager",
    "rollout_config": (
        "num_rollout_workers num_gpus_per_worker num_cpus_per_worker fragment_length to_send_queue_size "
        "episode_statistics_config"
    ),
    "rollout_config.worker_config": "num_envs batch_size restart_interval video_fps video_output_dir",
    "rollout_config.replay_buffer_config": (
        "max_chunks max_reuse max_staleness fragments_per_report fragments_per_chunk"
    ),
    "rollout_config.replay_buffer_config.database_config": "path num_shards",
    "train_config": (
        "num_workers num_gpus_per_worker num_iterations vf_warmup learning_rate anneal_lr_linearly weight_decay "
        "adam_eps batch_size_per_gpu batches_per_iteration gradient_accumulation epochs_per_iteration context_length "
        "discount gae_lambda ppo_clip clip_vloss max_grad_norm zero_initial_vf ppo_policy_coef ppo_vf_coef "
        "kl_divergence_coef_rho entropy_bonus_coef coef_rho_decay log_ratio_range normalize_advantage_full_batch "
        "use_normalized_vf use_amp inference_batch_size_per_gpu num_readers num_cpus_per_reader prefetch_batches "
        "save_interval keep_interval record_video_interval fix_decoder enable_ref_update resume resume_optimizer "
        "save_path"
    ),
    "logger_config": "project name",
}
"""All keys of the documents in `seeds`, by section."""


def described() -> dict[str, KeyDoc]:
    return {key.path: key for key in key_docs()}


def proofs() -> dict[str, str]:
    """Key to the test that proves it."""
    notes = yaml.safe_load(NOTES.read_text())["keys"]
    return {key: note["test"] for key, note in notes.items() if "test" in note}


def keys_of_the_seeds() -> set[str]:
    named = {f"{section}.{name}".removeprefix(".") for section, names in SEEDS.items() for name in names.split()}
    return named - {"rollout_config.episode_statistics_config"} | {"rollout_config.episode_statistics_config.window"}


def test_config_page_is_what_the_code_says() -> None:
    written = page(list(key_docs()), yaml.safe_load(NOTES.read_text()))
    assert PAGE.read_text() == written, "run `python docs/generate_config.py`"


def test_config_keys_all_say_what_they_mean() -> None:
    # The sections of `services` need no more words than their names.
    silent = {path for path, key in described().items() if not key.meaning}
    assert silent <= {"services.parameters", "services.learner"}


def test_config_keys_of_the_seeds_exist_and_name_a_test() -> None:
    assert keys_of_the_seeds() <= described().keys()
    assert not keys_of_the_seeds() - proofs().keys()


@pytest.mark.parametrize("key", proofs())
def test_config_key_names_an_existing_test(key: str) -> None:
    file, _, name = proofs()[key].partition("::")
    function, _, parameter = name.partition("[")
    text = (ROOT / file).read_text()
    defined = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert function in defined
    assert f'"{parameter.removesuffix("]")}"' in text or not parameter
