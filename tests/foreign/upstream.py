"""Files like upstream's, written for these tests: nine DeepSpeedJobs with their JSON, and two scripts.

The numbers come from the published example; each case is one row. The contradictions are upstream's too: one
name for several layouts, ZeRO stages that differ between flags and JSON, and twice as many samples as tokens.
"""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Size:
    """Values that all runs of a size share."""

    name: str
    layers: int
    hidden: int
    heads: int
    std: float
    lr: str
    batch: int
    tokens: int
    json_stage: int
    save: int
    recompute: bool


SIZES = {
    "125m": Size("gpt-125m", 12, 768, 12, 0.021, "6.0e-4", 256, 2_500_000_000, 2, 100, False),
    "1-3b": Size("gpt-1-3b", 24, 2048, 16, 0.013, "2.0e-4", 512, 26_000_000_000, 2, 1000, True),
    "13b": Size("gpt-13b", 40, 5120, 40, 0.008, "1.0e-4", 1024, 260_000_000_000, 1, 1000, True),
}

# file: size, replicas, slots, tensor, pipeline, ZeRO of the flags, workers, requested CPUs, requested memory
NINE = {
    "gpt-125m": ("125m", 1, 1, 1, 1, 0, 2, 2, 8),
    "gpt-125m-2xdp": ("125m", 1, 2, 1, 1, 2, 4, 4, 16),
    "gpt-125m-4xdp": ("125m", 1, 4, 1, 1, 2, 8, 8, 32),
    "gpt-1-3b-4xdp": ("1-3b", 1, 4, 1, 1, 2, 8, 8, 128),
    "gpt-1-3b-8xdp": ("1-3b", 1, 8, 1, 1, 2, 16, 16, 256),
    "gpt-1-3b-4xdp-4xpp": ("1-3b", 2, 8, 1, 4, 1, 32, 16, 256),
    "gpt-13b-4xdp-4xpp": ("13b", 2, 8, 1, 4, 1, 32, 16, 256),
    "gpt-13b-4xdp-8xpp": ("13b", 4, 8, 1, 8, 1, 32, 16, 256),
    "gpt-13b-4xdp-4xpp-4xtp": ("13b", 8, 8, 4, 4, 1, 32, 16, 256),
}


def flags_of(name: str) -> list[str]:
    """Return the arguments of one of the nine jobs, beginning with the script."""
    key, _, _, tensor, pipeline, stage, workers, _, _ = NINE[name]
    size = SIZES[key]
    output = f"output/{size.name}"
    flags = [
        "Megatron-DeepSpeed/pretrain_gpt.py",
        f"--tensor-model-parallel-size={tensor}",
        f"--pipeline-model-parallel-size={pipeline}",
        f"--num-layers={size.layers}",
        f"--hidden-size={size.hidden}",
        f"--num-attention-heads={size.heads}",
        f"--init-method-std={size.std}",
        "--seq-length=2048",
        "--max-position-embeddings=2048",
        "--use-flash-attn",
        "--micro-batch-size=16",
        f"--global-batch-size={size.batch}",
        f"--train-tokens={size.tokens}",
        f"--train-samples={size.tokens // 1000}",
        f"--lr={size.lr}",
        "--min-lr=1.0e-6",
        "--lr-decay-style=cosine",
        f"--lr-decay-tokens={size.tokens}",
        f"--lr-warmup-tokens={size.tokens // 100}",
        "--adam-beta1=0.9",
        "--adam-beta2=0.95",
        "--weight-decay=0.1",
        "--clip-grad=1.0",
        "--seed=1234",
        "--fp16",
        "--vocab-file=tokenizer/wiki-en-tokenizer/vocab.json",
        "--merge-file=tokenizer/wiki-en-tokenizer/merges.txt",
        "--data-path=dataset/wiki-en/gpt_text_document",
        "--data-impl=mmap",
        "--split=949,50,1",
        f"--num-workers={workers}",
        "--log-interval=10",
        "--eval-interval=100",
        "--eval-iters=10",
        f"--save-interval={size.save}",
        f"--save={output}/model",
        f"--load={output}/model",
        f"--tensorboard-dir={output}/tensorboard",
        "--tensorboard-queue-size=1",
        "--log-timers-to-tensorboard",
        "--log-batch-size-to-tensorboard",
        "--log-validation-ppl-to-tensorboard",
        "--deepspeed",
        f"--deepspeed_config=ds_config_{key}.json",
        f"--zero-stage={stage}",
    ]
    if pipeline == 1:
        flags.append("--no-pipeline-parallel")
    if size.recompute:
        flags += ["--checkpoint-activations", "--deepspeed-activation-checkpointing"]
    return flags


def deepspeed_json(key: str) -> dict:
    """Return the DeepSpeed JSON of a size."""
    size = SIZES[key]
    return {
        "train_batch_size": size.batch,
        "train_micro_batch_size_per_gpu": 16,
        "steps_per_print": 10,
        "zero_optimization": {"stage": size.json_stage, "elastic_checkpoint": True},
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "fp16": {
            "enabled": True,
            "loss_scale": 0,
            "loss_scale_window": 500,
            "hysteresis": 2,
            "min_loss_scale": 1,
            "initial_scale_power": 11,
        },
        "wall_clock_breakdown": False,
    }


def manifest(name: str, words: list[str] | None = None, **changes: object) -> str:
    """Return a DeepSpeedJob; `changes` may be replicas, slots, metadata_name or the unit of memory."""
    key, replicas, slots, _, _, _, _, cpus, memory = NINE[name]
    replicas, slots = changes.get("replicas", replicas), changes.get("slots", slots)
    run = "\n".join(f"        - {word}" for word in words or flags_of(name))
    return f"""apiVersion: batch.tensorstack.dev/v1beta1
kind: DeepSpeedJob
metadata:
  name: {changes.get("metadata_name", SIZES[key].name)}
spec:
  # scheduler:
  #   t9kScheduler: {{queue: default, priority: 50}}
  config:
    slotsPerWorker: {slots}
    localRank: true
    run:
      python:
{run}
  worker:
    replicas: {replicas}
    template:
      spec:
        containers:
          - name: worker
            image: t9kpublic/megatron-deepspeed:23.06-py3
            workingDir: /t9k/mnt/
            env:
              - name: CUDA_DEVICE_MAX_CONNECTIONS
                value: "1"
            resources:
              requests:
                cpu: {cpus}
                memory: {memory}{changes.get("unit", "Gi")}
              limits:
                cpu: {2 * cpus}
                memory: {2 * memory}Gi
                nvidia.com/gpu: {slots}
            volumeMounts:
              - name: data
                mountPath: /t9k/mnt
              - name: dshm
                mountPath: /dev/shm
        volumes:
          - name: data
            persistentVolumeClaim:
              claimName: megatron
          - name: dshm
            emptyDir:
              medium: Memory
"""


def write(folder: Path, name: str) -> Path:
    """Write the manifest of one of the nine jobs and, next to it, its JSON."""
    key = NINE[name][0]
    path = folder / f"{name}.yaml"
    path.write_text(manifest(name))
    (folder / f"ds_config_{key}.json").write_text(json.dumps(deepspeed_json(key), indent=2))
    return path


def script_175b(ramp: str = "--rampup-batch-size 16 16 5859375", nodes: int = 1) -> str:
    """Return Megatron-LM's 175B script with bash lists, which like the original has
    one node of 8 for 128 ranks.
    """
    return f"""#!/bin/bash
# The 175B model.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
MASTER_ADDR=localhost
NUM_NODES={nodes}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 # where to save
TENSORBOARD_LOGS_PATH=$2
VOCAB_FILE=$3
MERGE_FILE=$4
DATA_PATH=$5

LAUNCH=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # or flash
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size 1536
    {ramp}
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
    --lr-decay-iters 430000
)
PARALLEL=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)
DATA=(
    --data-path $DATA_PATH
    --vocab-file $VOCAB_FILE
    --merge-file $MERGE_FILE
    --split 949,50,1
)
LOGGING=(
    --log-interval 100
    --save-interval 10000
    --eval-interval 1000
    --save $CHECKPOINT_PATH
    --load $CHECKPOINT_PATH
    --eval-iters 10
    --tensorboard-dir $TENSORBOARD_LOGS_PATH
)
torchrun ${{LAUNCH[@]}} pretrain_gpt.py \\
    ${{MODEL[@]}} \\
    "${{TRAINING[@]}}" \\
    ${{PARALLEL[@]}} \\
    ${{DATA[@]}} \\
    ${{LOGGING[@]}}
"""


def script_deepspeed() -> str:
    """Return a 1.3B script with strings, conditions and a here-document, in the
    style of Megatron-DeepSpeed.
    """
    return r"""#!/bin/bash
seq_len=2048
## GPT-3 XL 1.3B
model_size=1.3
num_layers=24
hidden_size=2048
num_attn_heads=16
global_batch_size=512
lr=2.0e-4
train_tokens_in_billion=300
train_tokens=$((${train_tokens_in_billion} * 1000000000))
train_samples=$(( 300 * 1000000000 * 2 / ${seq_len} ))
lr_warmup_tokens=$((3000 * 1000000))
mp_size=2
pp_size=2
no_pp="false"
zero_stage=1
num_gpus=$(($(ds_ssh nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)-2))
dp_size=$(( ${num_gpus} / ${pp_size} / ${mp_size} ))
batch_size=2
activation_checkpoint="true"
current_time=$(date "+%Y.%m.%d_%H.%M.%S")
vocab_path="gpt2-vocab.json"
if [ ! -f "$vocab_path" ]; then
    wget https://example.org/gpt2-vocab.json
fi
jobname="gpt_${model_size}B_gbs${global_batch_size}_g${num_gpus}"
if [[ $zero_stage -gt 0 ]]; then
    jobname="${jobname}_z${zero_stage}"
fi
checkpoint_path="/blob/checkpoint/${jobname}"
data_options=" \
    --vocab-file ${vocab_path} \
    --merge-file gpt2-merges.txt \
    --data-path /data/pile_text_document \
    --data-impl mmap"
megatron_options=" \
    --override-opt_param-scheduler \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --tensor-model-parallel-size ${mp_size} \
    --init-method-std 0.013 \
    --lr-decay-tokens ${train_tokens} \
    --lr-warmup-tokens ${lr_warmup_tokens} \
    --micro-batch-size ${batch_size} \
    --exit-duration-in-mins 30000 \
    --global-batch-size ${global_batch_size} \
    --num-layers ${num_layers} \
    --hidden-size ${hidden_size} \
    --num-attention-heads ${num_attn_heads} \
    --seq-length ${seq_len} \
    --max-position-embeddings ${seq_len} \
    --train-tokens ${train_tokens} \
    --train-samples ${train_samples} \
    --lr ${lr} \
    --min-lr 1.0e-6 \
    --lr-decay-style cosine \
    --split 949,50,1 \
    --log-interval 10 \
    --eval-interval 100 \
    --eval-iters 10 \
    --save-interval 100 \
    --weight-decay 0.1 \
    --clip-grad 1.0 \
    --hysteresis 2 \
    --num-workers 0 \
    --fp16 \
    --seed 1234 \
    --load ${checkpoint_path} \
    --save ${checkpoint_path} \
    --tensorboard-queue-size 1"
if [ "${activation_checkpoint}" = "true" ]; then
megatron_options="${megatron_options} \
    --checkpoint-activations"
fi
config_json="ds_config_gbs${global_batch_size}.json"
cat <<EOT > $config_json
{
  "train_batch_size": $global_batch_size,
  "train_micro_batch_size_per_gpu": $batch_size,
  "steps_per_print": 10,
  "zero_optimization": { "stage": $zero_stage },
  "gradient_clipping": 1.0,
  "prescale_gradients": false,
  "fp16": { "enabled": true, "loss_scale": 0, "loss_scale_window": 500,
            "hysteresis": 2, "min_loss_scale": 1, "initial_scale_power": 11 },
  "wall_clock_breakdown": false
}
EOT
deepspeed_options=" \
    --deepspeed \
    --deepspeed_config ${config_json} \
    --zero-stage ${zero_stage} \
    --pipeline-model-parallel-size ${pp_size}"
if [[ "${no_pp}" = "true" ]]; then
deepspeed_options="${deepspeed_options} \
    --no-pipeline-parallel"
fi
for (( node = 0; node <= num_node-1; node++ ))
do
    iteration=$(ssh -q worker-"$node" cat latest)
done
deepspeed ../../pretrain_gpt.py ${megatron_options} ${data_options} ${deepspeed_options} &>> out.log
"""
