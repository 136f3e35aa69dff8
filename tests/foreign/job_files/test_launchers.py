"""Launchers: machines and ranks of each, behind prefixes and variables; the training counts among several."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load.other_files import SCRIPTS
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.job_files import script_jobs
from nbtrain.foreign.job_files.file_kinds import is_foreign
from nbtrain.foreign.job_files.programs import knows_flags
from nbtrain.foreign.job_files.script_jobs import jobs_of_script
from nbtrain.foreign.lint import lint
from nbtrain.foreign.syntax.located import Value
from tests.foreign.public_shapes import MEGATRON

TRAIN = f"pretrain_gpt.py {MEGATRON}"
GIVEN = {"tokenizer.vocab_size": 50257, "batch.global_batch_size": 3072}
HOSTS = "cat > hosts <<E\na slots=8\nb slots=8\nc slots=4\nE\n"


def ranks(text: str) -> tuple[int, int]:
    """Return the nodes, and the ranks on each, of a launch."""
    (job,) = jobs_of_script(text if "pretrain" in text else f"{text} {TRAIN}\n", "train.sh")
    assert job.nodes is not None and job.gpus_per_node is not None and knows_flags(job.flags) > 15
    return job.nodes.value, job.gpus_per_node.value


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("torchrun --nnodes 2 --nproc_per_node 8", (2, 8)),
        ("torchrun --nnodes=2:4 --nproc-per-node=4 --rdzv_backend c10d", (2, 4)),
        ("torchrun --standalone --nproc_per_node=4", (1, 4)),
        ("python -u -m torch.distributed.run --nnodes 4 --nproc_per_node=8", (4, 8)),
        ("python3 -m torch.distributed.launch --use_env --nproc_per_node 8 --nnodes 1", (1, 8)),
        ("deepspeed --num_nodes 2 --num_gpus 8", (2, 8)),
        ("deepspeed --num_gpus 4", (1, 4)),
        ("deepspeed --include localhost:0,1,2,3", (1, 4)),
        ("deepspeed --include=a:0-3@b:4-7 --master_port 6000", (2, 4)),
        (HOSTS + "deepspeed --hostfile=hosts --include a@b", (2, 8)),
        (HOSTS + "deepspeed --hostfile hosts --exclude c", (2, 8)),
        (HOSTS + "deepspeed --hostfile hosts --exclude c@a:0,1@b:6,7", (2, 6)),
        (HOSTS + "deepspeed -H hosts --num_nodes 2", (2, 8)),
        (HOSTS + "deepspeed --hostfile hosts --num_gpus 4", (3, 4)),
        ("mpirun -np 16 -N 8 python", (2, 8)),
        ("mpirun -np 16 -npernode 8 -x NCCL_DEBUG=INFO python", (2, 8)),
        ("mpirun -n 16 --map-by ppr:4:node --mca btl_tcp_if_include eth0 --allow-run-as-root python", (4, 4)),
        ("mpirun -np 16 -H a:8,b:8 --bind-to none python", (2, 8)),
        (HOSTS.replace("c slots=4\n", "") + "mpirun -np 16 --hostfile hosts python", (2, 8)),
        ("mpiexec -n 16 -ppn 4 -genv NCCL_DEBUG INFO python", (4, 4)),
        ("mpiexec.hydra -np 8 -perhost 8 python", (1, 8)),
        ("aprun -n 16 -N 8 python", (2, 8)),
        ("mpirun -np 2 --map-by ppr:1:node torchrun --nnodes 2 --nproc_per_node 8", (2, 8)),
        ("srun -N 4 --ntasks-per-node=8 python", (4, 8)),
        ("srun -N4 -n32 --gres=gpu:8 --kill-on-bad-exit=1 python -u", (4, 8)),
        ("srun -N 2 torchrun --nnodes 2 --nproc_per_node 8", (2, 8)),
        ("jsrun -n 4 -r 2 -a 3 -g 3 -c 21 python", (2, 6)),
        ("accelerate launch --num_processes 16 --num_machines 2 --mixed_precision bf16", (2, 8)),
        ("accelerate launch --multi_gpu --num_processes 8", (1, 8)),
        ("python -m accelerate.commands.launch --num_processes 8", (1, 8)),
        ("python", (1, 1)),
        ("python3 run.py --include localhost:0,1,2,3", (1, 4)),
    ],
)
def test_each_launcher_counts_its_ranks(launcher, expected):
    assert ranks(launcher) == expected


T = "torchrun --nnodes 2 --nproc_per_node 8"


@pytest.mark.parametrize(
    "text",
    [
        f"nsys profile -t cuda,nvtx -o out --force-overwrite true {T} {TRAIN}",
        f"uv run --with deepspeed {T} {TRAIN}",
        f"conda run -n python --no-capture-output {T} {TRAIN}",
        f"env -u X NCCL_DEBUG=INFO {T} {TRAIN}",
        f"NCCL_DEBUG=INFO nohup {T} {TRAIN} > log 2>&1 &",
        f"time numactl --cpunodebind=0 timeout 3600 {T} {TRAIN}",
        f"exec {T} {TRAIN}",
        f"singularity exec --nv -B /data:/data image.sif {T} {TRAIN}",
        f'apptainer exec --nv image.sif bash -c "cd /x && {T} {TRAIN}"',
        f"docker run --gpus all --rm image:1 {T} {TRAIN}",
        f"./wrapper.sh {T} {TRAIN}",
        f'L=({T})\nF=({MEGATRON})\n"${{L[@]}}" pretrain_gpt.py "${{F[@]}}"',
        f'CMD="{T} {TRAIN}"\necho $CMD\neval $CMD 2>&1 | tee log',
        f'CMD="{T} {TRAIN} 2>&1 | tee log.txt"\neval "$CMD"',
        f"bash -lc '{T} {TRAIN} > log 2>&1'",
        f"export F='{MEGATRON}'\nbash -c '{T} pretrain_gpt.py $F'",
        f'run() {{ n=$1; shift; torchrun --nnodes 2 --nproc_per_node $n "$@"; }}\nrun 8 {TRAIN}',
        f"bash <<'E'\n{T} {TRAIN}\nE",
        f'sbatch --nodes=2 --wrap "{T} {TRAIN}"',
        f"ssh node1 'cd /x; {T} {TRAIN}'",
        f"if {T} {TRAIN}; then echo done; fi",
        f"while true; do {T} {TRAIN} && break; sleep 5; done",
        f"for try in 1 2 3; do {T} {TRAIN} && break; done",
        f"$PREFIX {T} {TRAIN}",
        f"python tools/preprocess_data.py --input x --workers 4\n{T} {TRAIN}\npython report.py a",
        f"python setup.py build && {T} {TRAIN}",
        f"({T} {TRAIN}) | tee log",
        f"{{ {T} {TRAIN}; }} || exit 1",
    ],
)
def test_a_launch_is_found_behind_what_starts_it(text):
    assert ranks(text) == (2, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"$LAUNCHER {TRAIN}",
            "train.sh:1: the value of LAUNCHER is not known (it contains the launcher). Add "
            "LAUNCHER=..., or resources.nodes=... and resources.gpus_per_node=...",
        ),
        (
            "bash train/run_gpt.sh 8",
            "train.sh:1: the command runs train/run_gpt.sh, which may launch the training "
            "but was not given. Pass that script as well: nbtrain import FILE run_gpt.sh",
        ),
        (
            "A=$(cat command.txt)\n$A",
            "train.sh:1: the value of A is not known (nbtrain does not run $(cat command.txt)). Add A=...",
        ),
        (
            f"deepspeed --include worker-0@worker-1:0,2 {TRAIN}",
            "--include selects all GPUs of worker-0, and their number is in the hostfile). "
            "Add resources.gpus_per_node=... to the command.",
        ),
        (
            f"deepspeed --include a:0,1@b:0 {TRAIN}",
            ("--include selects different numbers of GPUs on the machines (a: 2, b: 1)). Add resources.gpus"),
        ),
        (
            f"N=${{WORLD_SIZE:-1}}\ntorchrun --nnodes $N --nproc_per_node 8 {TRAIN}",
            "train.sh:1: the value of WORLD_SIZE is not known (a scheduler sets it; without a scheduler, "
            "${WORLD_SIZE:-1} is 1). Add WORLD_SIZE=..., or resources.nodes=...",
        ),
        (
            f"torchrun --nproc_per_node=gpu --nnodes 1 {TRAIN}",
            "the value of gpu is not known (it is the number of GPUs",
        ),
        ("echo torchrun pretrain_gpt.py", "train.sh: the script launches no training: it has no torchrun"),
        (
            f"if [ $P = a ]; then {T} {TRAIN}; else {T} {TRAIN} --seed 2; fi",
            "the files describe 2 jobs: train.sh:1 (pretrain_gpt.py), train.sh:1 "
            "(pretrain_gpt.py).\ntrain.sh:1: which of these jobs runs depends on values that are "
            "not known. Add P=... to the command.",
        ),
    ],
)
def test_a_message_names_what_hides_the_launch(text, message, tmp_path):
    (tmp_path / "train.sh").write_text(text + "\n")
    with pytest.raises(ConfigError) as error:
        import_files([tmp_path / "train.sh"], GIVEN)
    assert message in str(error.value)


def test_what_hides_a_launch_may_be_given(tmp_path):
    """A variable, or the script that is run, completes the import."""
    path = tmp_path / "train.sh"
    path.write_text(f"$LAUNCHER {TRAIN}\n")
    found = import_files(
        [path], ["tokenizer.vocab_size=50257", "LAUNCHER=torchrun --nnodes 2 --nproc_per_node 4"]
    )
    assert (found.config.resources.nodes, found.config.resources.gpus_per_node) == (2, 4)
    path.write_text(f"export F='{MEGATRON}'\nbash inner.sh 4 2>&1 | tee log\n")
    (tmp_path / "inner.sh").write_text("torchrun --nnodes 1 --nproc_per_node $1 pretrain_gpt.py $F\n")
    found = import_files([path, tmp_path / "inner.sh"], GIVEN)
    assert (found.config.resources.gpus_per_node, found.config.model.num_layers) == (4, 12)


@pytest.mark.parametrize("ending", SCRIPTS)
@pytest.mark.parametrize(
    "command",
    ["./inner{}", "bash inner{}", "sbatch -N 1 inner{}", "salloc -N 1 ./inner{}", "$PREFIX inner{}"],
)
def test_a_script_is_followed_whatever_its_ending(command, ending, tmp_path):
    outer, inner = tmp_path / f"outer{ending}", tmp_path / f"inner{ending}"
    outer.write_text(f"{command.format(ending)}\n")
    inner.write_text(f"torchrun --nnodes 1 --nproc_per_node 4 {TRAIN}\n")
    assert is_foreign(outer)
    assert import_files([outer, inner], GIVEN).config.resources.gpus_per_node == 4


SLURM = "#!/bin/bash\n{}\n{} pretrain_gpt.py " + MEGATRON + "\n"


COUNT = "N=$(scontrol show hostnames $SLURM_JOB_NODELIST | wc -l)"
ON_NODE = "--nproc_per_node=$SLURM_GPUS_ON_NODE"


@pytest.mark.parametrize(
    ("lines", "launcher", "expected"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:4,lscratch:16", f"srun torchrun {ON_NODE}", (4, 4)),
        ("#SBATCH -N1\n#SBATCH --gres=gpu:4", "torchrun --nproc_per_node=${SLURM_GPUS_ON_NODE:-8}", (1, 4)),
        (
            "#SBATCH -N 2 --gpus=16 --ntasks-per-node=1",
            f"srun torchrun --nnodes=$SLURM_NNODES {ON_NODE}",
            (2, 8),
        ),
        (
            "#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-task=4",
            "srun torchrun --nproc_per_node=$SLURM_GPUS_PER_TASK",
            (2, 4),
        ),
        ("#SBATCH -N 2 -n 16 --gpus-per-node=8", "srun python -u", (2, 8)),
        ("#SBATCH -N 2 --gpus-per-node=8", "srun --ntasks-per-node=8 python", (2, 8)),
        (
            "#SBATCH -N 2 --gpus-per-node=8",
            "srun bash -c 'torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES \"$@\"' x",
            (2, 8),
        ),
        ("#SBATCH -N 2 --gres=gpu:8\necho x\n#SBATCH -N 16", "srun torchrun --nproc_per_node 8", (2, 8)),
        ("#SBATCH -N 2 --gpus-per-node=8", "mpirun -np 16 --map-by ppr:8:node python", (2, 8)),
        (f"#SBATCH -N 2\n{COUNT}", "srun torchrun --nnodes $N --nproc_per_node 8", (2, 8)),
        ("#SBATCH -N 2 --gres=gpu:a100:4", "srun torchrun --nproc_per_node gpu", (2, 4)),
        ("#SBATCH -n 16 --ntasks-per-node=8 --gres=gpu:8", "srun python", (2, 8)),
        (
            '#SBATCH -N 2 --gres=gpu:8\n[ -n "$SLURM_JOB_ID" ] && N=$SLURM_NNODES || N=1',
            "srun torchrun --nnodes $N --nproc_per_node 8",
            (2, 8),
        ),
    ],
)
def test_the_allocation_wins_over_defaults(lines, launcher, expected):
    assert ranks(SLURM.format(lines, launcher)) == expected


def test_machines_that_the_launcher_does_not_use_are_found(tmp_path):
    """torchrun that no srun starts trains on one of four machines, with a warning; another --nnodes is
    an error.
    """
    path = tmp_path / "job.sbatch"
    path.write_text(SLURM.format("#SBATCH -N4\n#SBATCH --gres=gpu:8", "torchrun --nproc_per_node=8"))
    (finding,) = (found for found in lint([path], GIVEN) if found.rule == "launcher_starts_everywhere")
    assert finding.level == "warning" and "1 of the 4 machines" in finding.message
    assert import_files([path], GIVEN).config.resources.nodes == 1
    assert import_files([path], {**GIVEN, "resources.nodes": 4}).config.resources.nodes == 4
    path.write_text(
        SLURM.format("#SBATCH -N4\n#SBATCH --gres=gpu:8", "srun torchrun --nnodes 2 --nproc_per_node=8")
    )
    with pytest.raises(ConfigError, match=r"torchrun starts ranks on 2 machines, but 4 are requested \(job"):
        import_files([path], GIVEN)
    # A check shows what an import asks for.
    assert any("but 4 are requested" in finding.message for finding in lint([path], GIVEN))
    assert import_files([path], {**GIVEN, "resources.nodes": 2}).config.resources.nodes == 2


def test_an_option_joined_with_a_variable_is_asked_for():
    """srun -N$NN takes the variable for its nodes, not the next word."""
    (job,) = jobs_of_script(f"srun -N$NN --ntasks-per-node=8 python {TRAIN}", "train.sh")
    assert [(key, unknown.name) for key, unknown in job.unknown] == [("resources.nodes", "NN")]
    assert job.gpus_per_node == Value(8, "train.sh:1")


def test_a_script_that_launches_too_many_trainings_is_refused(monkeypatch):
    """The trainings of a sweep's loops are not read one by one without end."""
    monkeypatch.setattr(script_jobs, "MOST_LAUNCHES", 3)
    loop = f"for lr in 1 2 3 4; do\n torchrun {TRAIN} --lr $lr\ndone"
    with pytest.raises(ConfigError, match=r"^train.sh:2: the script launches 4 different trainings, more "):
        jobs_of_script(loop, "train.sh")
    assert len(jobs_of_script(loop.replace(" 4;", ";"), "train.sh")) == 3
