"""Combines all rows that map flags to fields, and lists the flags that have no effect on a run.

Every flag is in a row, has no effect on the run for a reason given in WITHOUT_MEANING, or changes the run and
cannot be imported. In the last case its default matches what nbtrain does, and any other value makes the
import fail.
"""

import re

from nbtrain.foreign.mapping.rows_attention import ATTENTION_ROWS
from nbtrain.foreign.mapping.rows_layers import LAYER_ROWS
from nbtrain.foreign.mapping.rows_layout import LAYOUT_ROWS
from nbtrain.foreign.mapping.rows_model import MODEL_ROWS, Row
from nbtrain.foreign.mapping.rows_muon import MUON_ROWS
from nbtrain.foreign.mapping.rows_schedule import SCHEDULE_ROWS

# The rows are read in this order: the layout needs the number of ranks, and ZeRO needs the number format.
ROWS: tuple[Row, ...] = (
    *MODEL_ROWS,
    *LAYER_ROWS,
    *ATTENTION_ROWS,
    *SCHEDULE_ROWS,
    *MUON_ROWS,
    *LAYOUT_ROWS,
)

MAPPED = frozenset(dest for row in ROWS for dest in row.dests)
"""Values of the programs' parsers (dest) that some row reads."""
SAID = frozenset(field for row in ROWS for field in row.fields)
"""Fields that some row writes."""

# (pattern of the parser's value, reason why it has no effect on the run)
WITHOUT_MEANING: tuple[tuple[str, str], ...] = (
    (r"deepspeed|deepspeed_config|deepscale|deepscale_config", "read"),
    (
        r"log_(?!interval).*|.*tensorboard.*|wandb_.*|timing_.*|barrier_with_.*|enable_one_logger|one_logger_.*|app_tag_"
        r".*|otel_.*|logging_level|config_logger_dir",
        "nbtrain writes every scalar to TensorBoard and to the log",
    ),
    (
        r"profile.*|use_pytorch_profiler|pytorch_profiler_.*|nvtx_ranges|record_(memory_history|shapes)|memory_snapshot_path",
        "the section profile sets up profiling",
    ),
    (
        r"ckpt_(?!step|convert).*|dist_ckpt_.*|use_dist_ckpt|auto_detect_ckpt_format|no_save_(optim|rng)|"
        r"use_persistent_ckpt_worker|async_ckpt_.*|async_strategy|save_tokenizer_assets|verify_integrity|"
        r"exit_on_missing_checkpoint|non_persistent_.*|(override|use_checkpoint)_opt_param_scheduler|replication.*|"
        r"distrib_optim_fully_reshardable_mem_efficient|strict_fsdp_dtensor_load|universal_checkpoint|load_tag",
        "the section checkpoint sets how checkpoints are written",
    ),
    (
        r"no_load_(optim|rng|lr_state)",
        "a resumed run always loads the optimizer, the learning rate and the random state, and continues as "
        "if it had not stopped",
    ),
    (
        r"(?!bias_gelu).*_fusion|persist_layer_norm|no_persist_layer_norm|mem_efficient_ln|transformer_impl|use_mcore_models|"
        r"cross_entropy_fusion_impl|flash_attention_version|disable_jit_fuser|use_legacy_models|"
        r"deprecated_use_mcore_models|fused_.*|use_transformer_engine_op_fuser|use_te_.*|te_rng_tracker|"
        r"num_layers_at_.*_in_bf16",
        "it only chooses a kernel",
    ),
    (
        r"overlap_.*|tp_comm_.*|ddp_(?!average).*|async_tensor_model_parallel_allreduce|use_ring_exchange_p2p|"
        r"scatter_gather_tensors_in_pipeline|empty_unused_memory_level|lazy_mpu_init|local_rank|use_sharp|"
        r"distributed_backend|use_contiguous_buffers_in_local_ddp|nccl_.*|high_priority_.*|align_.*|"
        r"enable_gloo_process_groups|disable_gloo_process_groups|use_gloo_process_groups|create_all_gather_group|"
        r"sharp_enabled_group|use_tp_pp_dp_mapping|pipeline_model_parallel_comm_backend|num_buckets|"
        r"fsdp_(double_buffer|manual_registration)|use_nccl_ub|distributed_timeout_seconds_after_init|"
        r"flight_recorder_.*|manual_gc.*|defer_embedding_wgrad_compute|wgrad_deferral_limit|delay_wgrad_compute",
        "it only changes how ranks communicate; the sums are the same",
    ),
    (
        r"data_impl|mmap_.*|data_cache_path|num_dataset_builder_threads|create_attention_mask_in_dataloader|"
        r"dataloader_(fast_cache_load|defer_npy_index_mmap)|object_storage_cache_path|mid_level_dataset_surplus|"
        r"use_dataset_only|return_data_index",
        "it only changes how data is read; the samples are the same",
    ),
    (
        r"straggler.*|log_straggler|disable_straggler_on_startup|enable_ft_package|calc_ft_timeouts|ft_.*|"
        r"inprocess_.*|rerun_mode|check_for_.*|check_weight_hash.*|exit_signal.*|adlr_.*|kill_switch_file|"
        r"run_workload_inspector_server|gpu_sniff_test_interval|train_sync_interval|result_rejected_tracker_filename",
        "the section stability and nbtrain's supervisor monitor the job",
    ),
    (
        r"attention_softmax_in_fp32|accumulate_allreduce_grads_in_fp32|main_grads_dtype|disable_bf16_.*",
        "nbtrain always computes these sums in fp32",
    ),
    (
        r"apply_query_key_layer_scaling",
        "it divides and multiplies by the same number to keep fp16 in range; nbtrain's scores are in fp32",
    ),
    (
        r"partition_activations|contigious_checkpointing|checkpoint_in_cpu|synchronize_each_layer|profile_backward|"
        r"distribute_(saved|checkpointed)_activations|recompute_modules",
        "it only changes where recomputed activations are kept",
    ),
    (
        r"zero_(reduce_scatter|contigious_gradients|reduce_bucket_size|allgather_bucket_size)|remote_device|"
        r"use_pin_memory|scattered_embeddings|split_transformers|memory_centric_tiled_linear|tile_factor|"
        r"cpu_optimizer|cpu_torch_adam|ds_fused_adam",
        "DeepSpeed reads this from its JSON",
    ),
    (
        r"muon_(fp32_matmul_prec|use_syrk)",
        "it only changes how Newton-Schulz products are computed; nbtrain uses bf16 in bf16 runs, else fp32",
    ),
    (
        r"use_cpu_initialization|init_model_with_meta_device",
        "it only changes where the initial weights are drawn",
    ),
    (
        r"cp_comm_type|hierarchical_context_parallel_sizes",
        "it changes how context-parallel ranks exchange keys and values; nbtrain gathers them",
    ),
    (
        r"fp8_(margin|interval|amax_.*|recipe)|fp8_param_gather",
        "it changes how FP8 values are scaled; nbtrain scales each tensor in each step",
    ),
    (
        r"trust_remote_code|tokenizer_hf_.*|enable_experimental|allow_ambiguous_pad_tokens",
        "it only affects the program itself",
    ),
)
_PATTERNS = [(re.compile(pattern), reason) for pattern, reason in WITHOUT_MEANING]

# Values besides the default that also match what nbtrain does.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "dataloader_type": ("single", None),
    "DDP_impl": ("local", "torch"),
    "moe_expert_parallel_size": (1,),
    "expert_model_parallel_size": (1,),
    "num_experts": ([1], None),
    "ckpt_format": ("torch", "torch_dist", "fsdp_dtensor"),
}


def without_meaning(dest: str) -> str:
    """Return why a parser's value has no effect on a run; "" if it has an effect."""
    return next((reason for pattern, reason in _PATTERNS if pattern.fullmatch(dest)), "")
