"""Names that other training programs use for settings, and the field of a run that each name means.

A row of the table is a field, followed by its other names. The names are options of Megatron-LM and
Megatron-DeepSpeed (--tensor-model-parallel-size), and keys of DeepSpeed's JSON, GPT-NeoX
(model-parallel-size), torchtitan (parallelism.context_parallel_degree), Hugging Face's TrainingArguments
(per_device_train_batch_size) and Lightning's Trainer (accumulate_grad_batches). A field's own name needs no
row, even if it is typed in the wrong section.
"""

from nbtrain.base.text.table import rows

_FIELDS = """
model.num_layers | n_layer n_layers num_hidden_layers depth decoder_layers
model.hidden_size | n_embd d_model dim embed_dim model_dim
model.num_attention_heads | n_head n_heads num_heads
model.ffn_hidden_size | intermediate_size d_ff n_inner ffn_dim
model.seq_length | seq_len sequence_length max_seq_len max_seq_length block_size context_length n_ctx
    n_positions
model.make_vocab_size_divisible_by | vocab_divisor pad_vocab_size_to_multiple_of
model.hidden_dropout | dropout resid_pdrop
model.attention_dropout | attn_pdrop attn_dropout
model.activation | activation_function hidden_act swiglu squared_relu bias_gelu_fusion
model.add_bias_linear | disable_bias_linear mlp_bias use_bias
model.add_qkv_bias | attention_bias qkv_bias
model.untie_embeddings_and_output_weights | tie_word_embeddings no_weight_tying
    share_embeddings_and_output_weights
model.normalization | norm norm_type
model.norm_epsilon | layernorm_epsilon layer_norm_epsilon layer_norm_eps rms_norm_eps
model.init_method_std | initializer_range init_std
model.attention_backend | use_flash_attn use_flash_attn_v2 flash_attention attn_implementation
    attention_config
model.compile | torch_compile
model.cross_entropy_chunk_tokens | cross_entropy_loss_fusion
tokenizer.vocab_size | n_vocab vocabulary_size padded_vocab_size
tokenizer.path | tokenizer_model vocab_file merge_file tokenizer_path
data.blend | data_path train_data_path train_data_paths data_paths
data.num_workers | dataloader_num_workers num_data_workers
data.inter_document_masking | reset_attention_mask
batch.micro_batch_size | train_micro_batch_size_per_gpu per_device_train_batch_size micro_batch_size_per_gpu
    local_batch_size train_batch_size_per_gpu
batch.global_batch_size | train_batch_size total_batch_size gradient_accumulation_steps
    accumulate_grad_batches num_micro_batches
batch.rampup | rampup_batch_size
batch.train_steps | train_iters num_steps total_steps training_steps
batch.train_tokens | num_tokens total_tokens max_tokens
batch.exit_interval_steps | exit_interval
batch.exit_duration_minutes | exit_duration_in_mins max_time
optimizer.clip_grad | gradient_clipping grad_clip max_grad_norm max_norm gradient_clip_val
optimizer.adam_beta1 | betas beta1
optimizer.adam_beta2 | beta2
optimizer.adam_eps | adam_epsilon eps
optimizer.type | optimizer_type optimizer_name optim
optimizer.muon_momentum | momentum
optimizer.muon_nesterov | nesterov
optimizer.muon_num_ns_steps | ns_steps
optimizer.muon_scale_mode | adjust_lr_fn
lr_schedule.lr | learning_rate peak_lr max_lr
lr_schedule.min_lr | lr_min end_lr min_lr_factor
lr_schedule.lr_warmup_steps | warmup_steps lr_warmup_iters warmup_iters num_warmup_steps warmup_num_steps
lr_schedule.lr_warmup_fraction | warmup_ratio warmup
lr_schedule.lr_decay_steps | lr_decay_iters decay_steps
lr_schedule.lr_decay_style | lr_scheduler_type scheduler decay_type
precision.dtype | bf16 bfloat16 mixed_precision params_dtype torch_dtype param_dtype bnb_4bit_compute_dtype
lora.trainable_token_indices | modules_to_save trainable_tokens new_tokens train_new_tokens
lora.load_in_4bit | quantization_config quantize_base qlora
precision.fp8 | fp8_format fp8_hybrid fp8_e4m3 fp8_recipe fp8_param_gather enable_fp8_linear
precision.autocast | torch_autocast
precision.fp16.initial_scale_power | initial_loss_scale
precision.fp16.min_loss_scale | min_scale
parallel.tensor_parallel_size | tensor_model_parallel_size tensor_parallel_degree model_parallel_size tp
    tp_size autotp_size
parallel.pipeline_parallel_size | pipeline_model_parallel_size pipeline_parallel_degree pipe_parallel_size
    pp pp_size
parallel.num_layers_per_virtual_pipeline_stage | virtual_pipeline_model_parallel_size
    num_virtual_stages_per_pipeline_rank
parallel.data_parallel_size | dp dp_size data_parallel_degree data_parallel_shard_degree
    data_parallel_replicate_degree
parallel.ds_sequence_parallel_size | sp_size ulysses_size sequence_parallel_size
parallel.context_parallel_size | context_parallel_degree cp cp_size
parallel.zero_stage | stage zero_optimization fsdp fsdp_config use_distributed_optimizer sharding_strategy
    strategy
parallel.offload_optimizer.device | cpu_offload zero_offload offload optimizer_cpu_offload
    offload_optimizer_device
parallel.offload_param.device | cpu_offload_param offload_param_device
parallel.activation_checkpointing.granularity | recompute_granularity recompute_activations
    recompute recomputation checkpoint_activations gradient_checkpointing activation_checkpoint
parallel.activation_checkpointing.interval_layers | recompute_num_layers checkpoint_num_layers
parallel.overlap_comm | overlap_grad_reduce overlap_param_gather
parallel.communication_data_type | accumulate_allreduce_grads_in_fp32 grad_reduce_in_bf16 reduce_dtype
parallel.process_group_timeout_seconds | nccl_timeout distributed_timeout_minutes ddp_timeout
    init_timeout_seconds train_timeout_seconds comm_timeout timeout
checkpoint.save_interval_steps | save_interval save_steps checkpoint_interval every_n_train_steps
    ckpt_interval
checkpoint.keep_last | save_total_limit keep_latest_k save_top_k keep_last_n_checkpoints num_checkpoints
checkpoint.async_save | async_mode
evaluation.eval_interval_steps | eval_interval eval_steps val_check_interval validation_freq
evaluation.eval_iters | limit_val_batches eval_batches
logging.log_interval_steps | log_interval logging_steps log_every_n_steps log_freq
resources.nodes | num_nodes nnodes num_machines replicas
resources.gpus_per_node | nproc_per_node num_gpus devices gpus n_gpu gpus_per_replica
resources.memory_per_node_bytes | memory mem memory_per_node
resources.cpus_per_node | cpus cpu_per_node cpus_per_task
resources.gpu_type | gpu accelerator gpu_model
"""

FIELD_OF = {name: field for field, names in rows(_FIELDS) for name in names.split()}

# Settings of other programs for which nbtrain has no field, and what to use instead.
INSTEAD = {
    **dict.fromkeys(
        ("save_dir", "save", "output_dir", "checkpoint_dir", "default_root_dir", "dump_folder"),
        "nbtrain writes a run to $NBTRAIN_OUTPUT/<name>: set `name`, $NBTRAIN_OUTPUT and checkpoint.*",
    ),
    **dict.fromkeys(
        ("load", "load_dir", "resume_from_checkpoint", "ckpt_path", "load_checkpoint"),
        "Run `nbtrain resume` to continue a run from its newest checkpoint",
    ),
    **dict.fromkeys(
        ("tensorboard_dir", "logging_dir", "log_dir", "wandb_project", "report_to"),
        "nbtrain writes metrics to $NBTRAIN_OUTPUT/<name>/tensorboard",
    ),
    **dict.fromkeys(
        ("num_train_epochs", "max_epochs", "epochs"),
        "Set the training length with batch.train_tokens; the plan says how many epochs this is",
    ),
    **dict.fromkeys(
        ("world_size", "num_processes"), "The number of ranks is the product of the parallel.* sizes"
    ),
    **dict.fromkeys(
        ("expert_model_parallel_size", "expert_parallel_size", "num_experts", "moe_router_topk"),
        "Mixture-of-experts models are not supported",
    ),
}


def other_name(word: str) -> str:
    """Return a hint for another program's name of a setting.

    The hint has a leading space, e.g. " Nearest: parallel.zero_stage."

    "" for an unknown name. Dashes count as underscores, and upper case as lower case.
    """
    folded = word.strip().lstrip("-").replace("-", "_").lower()
    if folded in FIELD_OF:
        ulysses = " (Ulysses)" if FIELD_OF[folded] == "parallel.ds_sequence_parallel_size" else ""
        return f" Nearest: {FIELD_OF[folded]}{ulysses}."
    return f" {INSTEAD[folded]}." if folded in INSTEAD else ""
