"""Scripts in the shape of public ones, written for these tests: what each shows is in its docstring."""

MEGATRON = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64 --train-iters 1000 "
    "--lr 6e-4 --min-lr 6e-5 --lr-decay-style cosine --lr-warmup-iters 100 --vocab-file gpt2-vocab.json "
    "--merge-file gpt2-merges.txt --data-path corpus/wiki_text_document --bf16 --use-distributed-optimizer"
)


def ascend_script() -> str:
    """Return a GPT-2 script for Ascend: sizes by `case`, run.py around DeepSpeed's launcher, a JSON."""
    return r"""#!/bin/bash
KNOWN=("345M" "1.3B")
size="345M"
data=""
for word in $*
do
    if [[ $word == --size* ]];then
        size=`echo ${word#*=}`
    fi
    if [[ $word == --data* ]];then
        data=`echo ${word#*=}`
    fi
done
if [[ $data == "" ]];then
    echo "give --data=..."
    exit 1
fi
if [[ ! " ${KNOWN[@]} " =~ " ${size} " ]]; then
  echo "one of: ${KNOWN[*]}"
  exit 1
else
  MODEL=$size
fi
[ -d ./data ] || ln -s "$data" ./data
HERE=`pwd`
JSON=./ds_config.json
STAGE=1
DEEPSPEED=1
case $MODEL in
  "345M")
    TP=1
    PP=2
    LAYERS=24
    HIDDEN=1024
    HEADS=16
    BATCH=16
    ;;
  "1.3B")
    TP=2
    PP=2
    LAYERS=24
    HIDDEN=2048
    HEADS=16
    BATCH=32
    ;;
esac
options=" \
	--tensor-model-parallel-size $TP \
	--pipeline-model-parallel-size $PP \
  --num-layers $LAYERS \
  --hidden-size $HIDDEN \
  --num-attention-heads $HEADS \
  --seq-length 1024 --max-position-embeddings 1024 \
  --micro-batch-size 4 --global-batch-size $BATCH \
  --train-iters 5000 --lr-decay-iters 3200 \
  --data-path ./data/my-gpt_text_sentence --vocab-file ./data/gpt2-vocab.json \
  --merge-file ./data/gpt2-merges.txt --data-impl mmap --split 949,50,1 \
  --lr 1.5e-4 --min-lr 1.5e-5 --lr-decay-style cosine --lr-warmup-fraction .01 \
  --fp16 --seed 1234 \
        "
if [ ${DEEPSPEED} -eq 1 ]; then
	options="${options} \
		--deepspeed \
		--deepspeed_config=${JSON} \
		--zero-stage=${STAGE} \
	"
fi
cat <<EOT > $JSON
{
  "train_batch_size" : $BATCH,
  "train_micro_batch_size_per_gpu": 4,
  "zero_optimization": {
    "stage": $STAGE
  },
  "gradient_clipping": 1.0,
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12}
}
EOT
source ./test/env_npu.sh
python3 run.py --include localhost:0,1,2,3,4,5,6,7 ${HERE}/pretrain_gpt.py ${options} &> ./train.log &
wait
"""


def deepspeed_script() -> str:
    """Return a Megatron-DeepSpeed script whose flags and JSON contradict each other."""
    return r"""#!/bin/bash
DIR=`pwd`
BATCH=1024
MICRO=1
PP=2
STAGE=2
cat <<EOT > ds_config.json
{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": $MICRO,
  "gradient_accumulation_steps": 32,
  "zero_optimization": {"stage": $STAGE},
  "fp16": {"enabled": true}
}
EOT
deepspeed --num_gpus 4 --num_nodes 1 $DIR/pretrain_gpt.py \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size $PP --num-layers 24 --hidden-size 1024 \
  --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size $MICRO \
  --global-batch-size $BATCH --train-iters 5000 --lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine \
  --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path d/my_text_document --split 949,50,1 \
  --fp16 --foo-bar 3 --deepspeed --deepspeed_config ds_config.json --zero-stage 1
"""
