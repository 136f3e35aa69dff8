"""Problems that would prevent a run on a machine, with numbers, kind and fix; the tests describe the
machines.
"""

import os
import re
import shlex
import shutil
from dataclasses import replace

import pytest

from nbtrain.base import files
from nbtrain.base.extras import install_command
from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.nvml import Gpu
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load
from nbtrain.jobs.checks import preflight as checks
from nbtrain.jobs.checks import preflight_tools as tools_checks
from nbtrain.jobs.checks.preflight import preflight
from nbtrain.jobs.machine import build_tools, device_needs
from nbtrain.jobs.machine.machine import Machine
from nbtrain.jobs.machine.queue_folder import Queue
from nbtrain.jobs.request.launch import read_launch
from tests.evaluation.made import MMLU, write_lines
from tests.messages import lacks

GIB = 1 << 30
MACHINE = Machine(
    host="box",
    cores=2,
    cpu="CPU X",
    cpu_flags=frozenset({"avx2", "avx512_bf16"}),
    memory_bytes=16 * GIB,
    memory_available_bytes=12 * GIB,
    gpus=(),
)

# Another size or other text would have different names.
NAMES = {"data.name": "mock", "tokenizer.name": "mock"}


def found(config, machine=MACHINE):
    launch = replace(read_launch(config), machine=machine)
    return [(problem.lacks or "error", str(problem)) for problem in preflight(launch)]


def test_a_run_that_fits_has_no_problem(tiny):
    """A run that fits has no problems."""
    assert found(tiny()) == []


def test_missing_gpus_are_counted(tiny):
    """Missing GPUs are reported as a shortage, with the numbers that are needed and available."""
    config = tiny(
        **{"resources.device": "gpu", "resources.gpus_per_node": 4, "parallel.data_parallel_size": 4}
    )
    [(kind, message)] = found(config)
    assert kind == "resource"
    place = "override resources.gpus_per_node=4: "
    assert lacks(message, place, "needs 4 GPUs, but box has 0.", "resources.device=cpu") == []
    assert found(config, replace(MACHINE, gpus=(Gpu("A100", 40 * GIB),) * 4)) == []


def test_a_fault_that_no_rank_would_understand_is_refused(tiny):
    """A fault injection that no rank would understand is rejected, with the place where it is set."""

    def messages(text):
        problems = found(tiny(**{"backend.env": {"NBTRAIN_FAULTS": text}}))
        return [message for kind, message in problems if kind == "error"]

    assert messages('[{"step": 6, "do": "raise", "message": "boom"}]') == []
    [raises] = messages('[{"step": 6, "do": "raise"}]')
    assert "backend.env.NBTRAIN_FAULTS order 0" in raises
    assert "must set message, the text of the error to raise. Correct it, or remove it" in raises
    assert raises.startswith("override backend.env")
    [garbage] = messages("garbage")
    assert "is not JSON" in garbage
    [strange] = messages('[{"step": 6, "do": "nan", "rank": 7}]')
    assert "names rank 7, but the run has only rank 0." in strange


def test_hidden_gpus_are_explained(tiny, monkeypatch):
    """If CUDA_VISIBLE_DEVICES may hide GPUs, the message mentions it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [(_, message)] = found(tiny(**{"resources.device": "gpu"}))
    assert "box has 0 (CUDA_VISIBLE_DEVICES=)." in message


def test_gpus_are_those_that_the_ranks_see(tiny, monkeypatch):
    """backend.env replaces the shell's CUDA_VISIBLE_DEVICES, for the number of GPUs, their kernels and their
    memory, and a message names the one that applies.
    """
    small, large = Gpu("Tesla T4", 16 * GIB), Gpu("NVIDIA A100-SXM4-80GB", 80 * GIB)
    there = tuple(replace(gpu, index=index) for index, gpu in enumerate((small,) * 2 + (large,) * 2))
    monkeypatch.setattr(nvml, "driver_gpus", lambda: there)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gpu = {"resources.device": "gpu", "resources.gpus_per_node": 2, "parallel.data_parallel_size": 2}
    gpu |= {"precision.dtype": "bf16"}

    def problems(visible):
        config = tiny(**gpu, **{"backend.env": {"CUDA_VISIBLE_DEVICES": visible}})
        return [problem.text for problem in preflight(read_launch(config)) if problem.lacks == "resource"]

    assert problems("2,3") == []
    [kernels] = problems("2,1")
    assert "bf16 needs a GPU of compute capability 8.0 (Ampere) or newer; Tesla T4 has" in kernels
    [few] = problems("3")
    assert "needs 2 GPUs" in few and " has 1 (backend.env.CUDA_VISIBLE_DEVICES=3)." in few


def test_devices_json_limits_what_is_checked(tiny, monkeypatch):
    """GPUs and cores that devices.json withholds from the run are not looked at, unless the run shares its
    devices; a damaged file is reported, and limits nothing.
    """
    small, large = Gpu("Tesla T4", 16 * GIB), Gpu("NVIDIA A100-SXM4-80GB", 80 * GIB)
    there = tuple(replace(gpu, index=index) for index, gpu in enumerate((small,) * 2 + (large,) * 2))
    for module in (nvml, device_needs):
        monkeypatch.setattr(module, "driver_gpus", lambda: there)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu = {"resources.device": "gpu", "resources.gpus_per_node": 2, "parallel.data_parallel_size": 2}
    queue = Queue()
    queue.make()

    def problems(text, **overrides):
        queue.devices_json.write_text(text)
        launch = read_launch(tiny(**{"precision.dtype": "bf16", **overrides}))
        return [problem.text for problem in preflight(launch)]

    assert problems('{"gpus": ["2", "3"]}', **gpu) == []
    [kernels] = problems('{"gpus": ["1", "2", "3"]}', **gpu)
    assert "bf16 needs a GPU of compute capability 8.0 (Ampere) or newer; Tesla T4 has" in kernels
    [few] = problems('{"gpus": ["3"]}', **gpu)
    assert "needs 2 GPUs, but queue/devices.json allows only 1" in few
    shared = {**gpu, "backend.share_devices": True}
    assert problems('{"gpus": ["2", "3"]}', **shared) == [kernels]
    assert any("queue/devices.json: must have the form" in text for text in problems('{"gpus": 2}', **gpu))
    large_model = {"model.num_layers": 48, "model.hidden_size": 4096, "model.num_attention_heads": 32}
    large_model |= {"precision.dtype": "fp16", "model.seq_length": 64, "batch.micro_batch_size": 1}

    def memory(text):
        found = problems(text, **gpu, **large_model)
        return [problem.partition(" of memory")[0] for problem in found if problem.startswith("a rank on")]

    [on_small], [on_large] = memory('{"gpus": ["2", "1"]}'), memory('{"gpus": ["2", "3"]}')
    assert "Tesla T4" in on_small and "A100" in on_large
    cores = {"parallel.data_parallel_size": 8, "batch.global_batch_size": 16}
    assert problems('{"cores": 2}', **cores) == []
    [ranks] = problems('{"cores": 1}', **cores)
    assert "the run starts 8 ranks, but " in ranks and " has 1 core for it" in ranks


def test_a_cut_model_is_trained(tiny):
    """A model that is sharded by tensor, pipeline or Ulysses parallelism has no problems on a machine with
    enough cores.
    """
    for layout in (
        {"parallel.tensor_parallel_size": 2, "parallel.sequence_parallel": True},
        {"parallel.pipeline_parallel_size": 2},
        {"parallel.ds_sequence_parallel_size": 2},
    ):
        assert found(tiny(**layout)) == []


ON_GPU = {"resources.device": "gpu", "resources.gpus_per_node": 1}


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        (
            "NVIDIA A100-SXM4-80GB",
            {"precision.fp8": True, "precision.dtype": "bf16"},
            "override precision.fp8=true: precision.fp8 = true needs a GPU of compute capability 9.0 "
            "(Hopper) or newer; NVIDIA A100-SXM4-80GB has compute capability 8.0. Set precision.fp8=false.",
        ),
        (
            "Tesla T4",
            {"precision.dtype": "bf16"},
            "override precision.dtype=bf16: precision.dtype = bf16 needs a GPU of compute capability 8.0 "
            "(Ampere) or newer; Tesla T4 has compute capability 7.5. Set precision.dtype=fp16 or fp32.",
        ),
        (
            "Tesla T4",
            {"model.attention_backend": "flash", "precision.dtype": "fp16"},
            "override model.attention_backend=flash: model.attention_backend = flash needs a GPU of compute "
            "capability 8.0 (Ampere) or newer; Tesla T4 has compute capability 7.5. Set "
            "model.attention_backend=auto.",
        ),
    ],
)
def test_a_gpu_without_the_kernels(tiny, name, overrides, expected):
    """Settings are checked against the compute capability of the installed GPU, not against
    resources.gpu_type.

    A GPU that is in no table passes the preflight; the rank checks it.
    """
    config = tiny(**ON_GPU, **overrides)
    assert found(config, replace(MACHINE, gpus=(Gpu(name, 16 * GIB),))) == [("resource", expected)]
    for fine in ("NVIDIA H200", "NVIDIA Something New"):
        assert found(config, replace(MACHINE, gpus=(Gpu(fine, 16 * GIB),))) == []


def test_host_memory_beside_the_gpus(tiny):
    """The host memory that offloading uses is added up over all ranks."""
    large = {"model.hidden_size": 4096, "model.num_layers": 24, "model.num_attention_heads": 32}
    offload = {"parallel.zero_stage": 3, "parallel.offload_optimizer.device": "cpu"}
    config = tiny(**ON_GPU, **large, **offload)
    machine = replace(MACHINE, gpus=(Gpu("NVIDIA H200", 141 * GIB),))
    [message] = host_memory(found(config, machine))
    assert re.match(r"1 rank on box will need about [\d.]+ GiB of host memory", message)
    assert lacks(message, "only 16.0 GiB is available (per rank: ", "gradients") == []
    assert "optimizer" in message
    assert host_memory(found(config, replace(machine, memory_bytes=512 * GIB))) == []
    assert "Set parallel.offload_optimizer.device: none; a rank then needs 0 B of host memory." in message


def test_a_remedy_for_the_gpus_that_are_there(tiny):
    """A model that would fit two GPUs is not told to use them on a machine with one."""
    large = {"model.hidden_size": 2048, "model.num_layers": 24, "model.num_attention_heads": 32}
    config = tiny(**ON_GPU, **large, **{"precision.dtype": "bf16", "parallel.zero_stage": 1})
    one = replace(MACHINE, memory_bytes=8 * GIB, gpus=(Gpu("NVIDIA A100-PCIE-40GB", 18 * GIB),))
    [message] = [text for _, text in found(config, one) if "a rank on NVIDIA" in text]
    assert "gpus_per_node" not in message and "resources.nodes" not in message
    two = replace(one, gpus=one.gpus * 2)
    [message] = [text for _, text in found(config, two) if "a rank on NVIDIA" in text]
    assert "resources.gpus_per_node: 2" in message and "resources.nodes" not in message


def host_memory(problems: list[tuple[str, str]]) -> list[str]:
    return [message for kind, message in problems if kind == "resource" and "of host memory" in message]


# --- NVMe and what is built on first use ----------------------------------------------------------


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Provide every tool, including libaio's header; a test removes the tool that it is about."""
    present = {"g++": True, "ninja": True, "nvcc": True, "gcc": True}
    for variable in (
        "CXX",
        "CC",
        "CUDA_HOME",
        "CUDA_PATH",
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "CFLAGS",
        "CXXFLAGS",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(
        build_tools.shutil, "which", lambda name: f"/bin/{name}" if present.get(name) else None
    )
    monkeypatch.setattr(build_tools.sys, "executable", str(tmp_path / "bin" / "python"))
    include = tmp_path / "include"
    include.mkdir()
    (include / "libaio.h").touch()
    monkeypatch.setattr(build_tools, "INCLUDE_FOLDERS", (str(include),))
    monkeypatch.setattr(build_tools, "CUDA_FOLDER", str(tmp_path / "cuda"))
    return present


@pytest.fixture
def nvme(tmp_path, monkeypatch):
    """Return settings that offload to a folder on a disk."""
    folder = tmp_path / "nvme"
    folder.mkdir()
    monkeypatch.setattr(tools_checks, "file_system_of", lambda folder: "ext4")
    return folder, {
        "parallel.zero_stage": 3,
        "parallel.offload_optimizer": {"device": "nvme", "nvme_path": str(folder)},
    }


def test_nvme_that_is_ready(tiny, tools, nvme):
    assert found(tiny(**nvme[1])) == []


def test_nvme_without_a_folder(tiny, tools, nvme):
    nvme[0].rmdir()
    [(kind, message)] = found(tiny(**nvme[1]))
    assert kind == "error"
    assert message.endswith(
        f"parallel.offload_optimizer.nvme_path = {nvme[0]} is not a folder. Create the folder on a local "
        "NVMe disk."
    )


def test_nvme_that_cannot_be_written(tiny, tools, nvme, monkeypatch):
    allowed = os.access
    monkeypatch.setattr(
        tools_checks.os, "access", lambda path, mode: str(path) != str(nvme[0]) and allowed(path, mode)
    )
    [(kind, message)] = found(tiny(**nvme[1]))
    assert kind == "error"
    assert message.endswith("is not writable. Choose a writable folder on a local NVMe disk.")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "tmpfs",
            "on a local NVMe disk, or set parallel.offload_optimizer.nvme_path=null and "
            "parallel.offload_optimizer.device=cpu.",
        ),
        ("nfs4", "is on a network file system (nfs4), and every step would wait for it."),
        ("fuse.sshfs", "is on a network file system (fuse.sshfs), and every step would wait for it."),
    ],
)
def test_nvme_that_is_no_disk_of_this_machine(tiny, tools, nvme, monkeypatch, kind, expected):
    monkeypatch.setattr(tools_checks, "file_system_of", lambda folder: kind)
    [(problem, message)] = found(tiny(**nvme[1]))
    assert problem == "error"
    assert expected in message


def test_a_local_dir_that_cannot_serve(tiny, tmp_path, monkeypatch):
    """A local_dir is rejected if it is inside the run directory, not writable, or too small."""
    assert found(tiny(**{"checkpoint.local_dir": f"{tmp_path}/{{host}}/new"})) == []
    inside = str(tools_checks.output_root() / "local")
    [(kind, message)] = found(tiny(**{"checkpoint.local_dir": inside}))
    assert kind == "error"
    assert message.endswith(
        "the folder that its checkpoints are copied to. Choose a folder on a local disk of each node."
    )
    (tmp_path / "file").write_text("")
    [(kind, message)] = found(tiny(**{"checkpoint.local_dir": f"{tmp_path}/file/x"}))
    assert kind == "error"
    assert f"box has no permission to write to {tmp_path}/file. Create the folder on a local disk" in message
    usage, small = shutil.disk_usage("/"), str(tmp_path)

    room = 1000

    def with_free(path):
        return usage._replace(free=room if str(path) == small else 10**12)

    monkeypatch.setattr(tools_checks.shutil, "disk_usage", with_free)
    [(kind, message)] = found(tiny(**{"checkpoint.local_dir": f"{tmp_path}/n"}))
    assert kind == "resource"
    assert f"box has 1000 B free on {tmp_path}, but the run's checkpoints there need 1." in message
    assert message.endswith("Free up space there, or choose a folder on a larger disk.")
    room = 2_000_000
    several = {"checkpoint.local_dir": f"{tmp_path}/n", "checkpoint.local_keep_last": 4}
    [(_, message)] = found(tiny(**several))
    assert message.endswith(
        "Free up space there, set checkpoint.local_keep_last: 2, or choose a folder on a larger disk."
    )
    assert found(tiny(**several | {"checkpoint.local_keep_last": 2})) == []


def test_checkpoints_of_this_run_make_room_for_its_new_ones(tiny, tmp_path, monkeypatch):
    """Checkpoints of this run that will be replaced count as free space; checkpoints of other runs do not."""
    usage = shutil.disk_usage("/")
    disk = tmp_path / "n"
    monkeypatch.setattr(
        tools_checks.shutil,
        "disk_usage",
        lambda path: usage._replace(free=1000 if path == disk else 10**12),
    )
    monkeypatch.setattr("nbtrain.planner.budget.disk.local_bytes", lambda config: 10**6)
    config = tiny(**{"checkpoint.local_dir": str(disk)})

    def written(folder):
        save = disk / folder / "global_step4"
        save.mkdir(parents=True)
        (save / "rank0.pt").write_bytes(bytes(10**6))

    written("tiny-large-0123456789abcdef")
    assert [kind for kind, _ in found(config)] == ["resource"]
    run = RunDir.named(config.name)
    run.path.mkdir(parents=True)
    files.write_json(run.run_json, {"run_id": "fedcba9876543210"})
    assert [kind for kind, _ in found(config)] == ["resource"]
    written("tiny-fedcba9876543210")
    assert found(config) == []


def test_nvme_without_room(tiny, tools, nvme, monkeypatch):
    """Too little space for NVMe offloading is reported, for the states of all ranks together."""
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(
        tools_checks.shutil,
        "disk_usage",
        lambda path: usage._replace(free=1000 if str(path) == str(nvme[0]) else 10**12),
    )
    [(kind, message)] = found(tiny(**nvme[1]))
    assert kind == "resource"
    assert re.search(
        r"nvme: the disk has 1000 B free, but the state that is offloaded to NVMe needs \d+\.\d KiB\.",
        message,
    )


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        ("g++", "a C++ compiler (Debian: g++)"),
        ("ninja", "ninja (pip install ninja)"),
        ("libaio.h", "libaio's headers (Debian: libaio-dev)"),
    ],
)
def test_nvme_needs_what_its_extension_is_built_with(tiny, tools, nvme, monkeypatch, gone, expected):
    """The tools that DeepSpeed needs to compile its NVMe extension are checked before launch."""
    tools[gone] = False
    if gone == "libaio.h":
        monkeypatch.setattr(build_tools, "INCLUDE_FOLDERS", ())
    [(kind, message)] = found(tiny(**nvme[1]))
    assert kind == "error"
    place = "parallel.offload_optimizer.device = nvme"
    assert lacks(message, place, f": {expected}. Install what is missing") == []


def test_a_header_is_looked_for_where_the_compiler_is_told_to(tiny, tools, nvme, monkeypatch, tmp_path):
    folder = build_tools.INCLUDE_FOLDERS[0]
    monkeypatch.setattr(build_tools, "INCLUDE_FOLDERS", ())
    for variable, value in (("CPATH", f"/x:{folder}"), ("CFLAGS", f"-O2 {shlex.quote(f'-I{folder}')}")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert found(tiny(**nvme[1])) == []


def test_ninja_beside_python_is_found(tiny, tools, nvme, tmp_path):
    """ninja is found next to the Python interpreter that starts the ranks, where pip installs it."""
    tools["ninja"] = False
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ninja").touch()
    assert found(tiny(**nvme[1])) == []


def test_quantization_needs_cudas_compiler(tiny, tools, tmp_path, monkeypatch):
    """nvcc is searched for in the same order as in torch: $CUDA_HOME, $CUDA_PATH, PATH, /usr/local/cuda."""
    config = tiny(**ON_GPU, **{"parallel.zero_stage": 3, "parallel.zero_quantized_weights": True})
    machine = replace(MACHINE, gpus=(Gpu("NVIDIA H200", 141 * GIB),))
    assert found(config, machine) == []
    tools["nvcc"] = False
    [(kind, message)] = found(config, machine)
    assert kind == "error"
    assert f"needs: CUDA's compiler nvcc (in $CUDA_HOME/bin, PATH or {tmp_path}/cuda/bin)." in message
    (tmp_path / "cuda" / "bin").mkdir(parents=True)
    (tmp_path / "cuda" / "bin" / "nvcc").touch()
    assert found(config, machine) == []
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "nowhere"))
        assert len(found(config, machine)) == 1
        monkeypatch.setenv(variable, str(tmp_path / "cuda"))
        assert found(config, machine) == []


def test_fpdt_needs_its_package(tiny, monkeypatch):
    """Whether FPDT's package is installed is checked without importing it, because the import would load
    torch.
    """
    settings = {"parallel.fpdt_chunk_tokens": 16, "model.attention_dropout": 0.0, "precision.dtype": "bf16"}
    config = tiny(**ON_GPU, **settings)
    machine = replace(MACHINE, gpus=(Gpu("NVIDIA H200", 141 * GIB),))
    monkeypatch.setattr(tools_checks.importlib.util, "find_spec", lambda name: None)
    [(kind, message)] = found(config, machine)
    assert kind == "error"
    assert lacks(message, "parallel.fpdt_chunk_tokens = 16", "package flash-attn", "not installed") == []
    monkeypatch.setattr(tools_checks.importlib.util, "find_spec", lambda name: name)
    assert found(config, machine) == []


def test_four_bits_need_their_package(tiny, monkeypatch):
    """Whether the package for 4-bit quantization is installed is checked without importing it, because the
    import would load torch.
    """
    config = tiny(**{"lora.load_in_4bit": True, "init_from": "a-run"})
    monkeypatch.setattr(tools_checks.importlib.util, "find_spec", lambda name: None)
    [obstacle] = tools_checks.packages_are_there(read_launch(config))
    parts = ("lora.load_in_4bit = true", "package bitsandbytes", install_command("qlora"))
    assert lacks(str(obstacle), *parts) == []
    monkeypatch.setattr(tools_checks.importlib.util, "find_spec", lambda name: name)
    assert list(tools_checks.packages_are_there(read_launch(config))) == []


def test_compile_for_gpus_needs_a_c_compiler(tiny, tools):
    """model.compile on GPUs needs a C compiler, because Triton compiles its launcher with it."""
    config = tiny(**ON_GPU, **{"model.compile": True})
    machine = replace(MACHINE, gpus=(Gpu("NVIDIA H200", 141 * GIB),))
    assert found(config, machine) == []
    tools["gcc"] = False
    [(_, message)] = found(config, machine)
    assert "needs a C compiler on GPUs, and neither $CC nor gcc nor clang was found." in message


def test_a_ramp_is_trained(tiny):
    """A run with a batch-size ramp-up has no problems."""
    ramp = {"start_batch_size": 2, "batch_size_increment": 2, "ramp_samples": 30}
    assert found(tiny(**{"batch.rampup": ramp})) == []


def test_fp16_needs_the_instructions(tiny):
    """fp16 on a CPU without fp16 instructions is rejected, and the message names the CPU."""
    [(kind, message)] = found(tiny(**{"precision.dtype": "fp16"}))
    assert kind == "resource"
    instructions = "avx512_fp16, amx_fp16, fphp, asimdhp, but CPU X has none"
    assert lacks(message, "precision.dtype = fp16", instructions, "Set precision.dtype=bf16") == []
    assert found(tiny(**{"precision.dtype": "bf16"})) == []


def test_memory_is_estimated(tiny):
    """A model that cannot fit in memory is reported with the parts of its memory before it is started."""
    config = tiny(**{"model.hidden_size": 4096, "model.num_layers": 24, "model.num_attention_heads": 32})
    message = next(message for kind, message in found(config) if "memory" in message)
    assert message.startswith("1 rank on box will need about ")
    assert "only 16.0 GiB is available (per rank: weights" in message


def test_a_disk_too_small_for_the_checkpoints(tiny, monkeypatch):
    """If the disk is too small for the checkpoints, the message contains the free bytes and the size of the
    checkpoints.
    """
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: usage._replace(free=3_000_000))
    [(kind, message)] = found(tiny())
    assert kind == "resource"
    numbers = ("2.9 MiB free", "3 checkpoints of 638.1 KiB", "need 65.9 MiB")
    assert message.startswith("output: ")
    assert lacks(message, *numbers, "Free up space, or set NBTRAIN_OUTPUT") == []
    # Two checkpoints and 64 MiB of logs.
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: usage._replace(free=69_000_000))
    [(_, message)] = found(tiny(**{"checkpoint.keep_last": 3}))
    assert lacks(message, "Free up space, set checkpoint.keep_last: 1, or set NBTRAIN_OUTPUT") == []
    assert found(tiny(**{"checkpoint.keep_last": 1})) == []


def test_an_output_without_permission(tiny, monkeypatch):
    """An output directory that is not writable is rejected; access() decides, because root may write
    anywhere.
    """
    monkeypatch.setattr(checks.os, "access", lambda path, mode: False)
    [(kind, message)] = found(tiny())
    assert kind == "error"
    assert message.startswith("output/tiny cannot be written: the permissions of ")
    assert lacks(message, "Set NBTRAIN_OUTPUT to ", "change the permissions") == []


def test_an_output_on_a_read_only_disk(tiny, monkeypatch):
    """An output directory on a read-only disk is reported as such, and not as missing permission."""
    monkeypatch.setattr(checks, "is_read_only", lambda folder: True)
    [(kind, message)] = found(tiny())
    assert kind == "error"
    assert message.startswith("output/tiny cannot be written: ")
    assert lacks(message, " is on a read-only disk.", "Mount the disk", "set NBTRAIN_OUTPUT") == []
    assert "permissions" not in message


def test_an_output_root_that_is_a_file(tiny, workspace):
    """If NBTRAIN_OUTPUT names a file, the run is rejected."""
    (workspace / "output").write_text("a file")
    [(kind, message)] = found(tiny())
    assert (kind, message) == ("error", "output is a file, not a folder. Set NBTRAIN_OUTPUT to a folder.")


@pytest.fixture
def own_data(tiny_data, tmp_path, monkeypatch):
    """Copy the data directory, so that a test may damage it. Must be requested after `tiny`."""
    folder = tmp_path / "data"
    shutil.copytree(tiny_data, folder)
    monkeypatch.setenv("NBTRAIN_DATA", str(folder))
    return folder


def test_compile_without_a_compiler(tiny, monkeypatch):
    """Without a compiler, model.compile is rejected before a job is started; $CXX is used if it is set."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    [(kind, message)] = found(tiny(**{"model.compile": True}))
    assert kind == "error"
    compilers, fixes = "neither $CXX nor g++ nor clang++", ("apt-get install g++", "model.compile=false")
    assert lacks(message, "override model.compile=true: ", compilers, *fixes) == []
    monkeypatch.setattr(checks.shutil, "which", lambda name: name if name == "/opt/c++" else None)
    monkeypatch.setenv("CXX", "/opt/c++")
    assert found(tiny(**{"model.compile": True})) == []


def test_tasks_are_read_before_a_launch(tiny, tmp_path):
    """The files of evaluation tasks are read before launch, and a missing file or an invalid line is
    reported.
    """
    right = write_lines(tmp_path / "right.jsonl", MMLU)
    wrong = write_lines(tmp_path / "wrong.jsonl", [MMLU[0], {**MMLU[1], "answer": "E"}])
    twin = write_lines(tmp_path / "Right.jsonl", MMLU)
    rest = [(tmp_path / "none.jsonl", None), (wrong, None), (right, 4), (twin, None)]
    entries = [{"task": "mmlu", "path": str(path), "limit": limit} for path, limit in [(right, 3), *rest]]
    assert found(tiny(**{"evaluation.tasks": entries[:1]})) == []
    problems = found(tiny(**{"evaluation.tasks": entries}))
    assert {kind for kind, _ in problems} == {"error"}
    said = [re.sub(r"^override .*?: (?=evaluation\.tasks\.\d)", "", text) for _, text in problems]
    none, twice = tmp_path / "none.jsonl", ("mmlu-right", "evaluation.tasks.0", "Rename")
    expected = [
        ("evaluation.tasks.1.path ", f"{none}: cannot be read (No such file", "Correct the path"),
        ("evaluation.tasks.2.path ", f'{wrong}:2: answer = "E" must be 0 to 3', "docs/evaluation.md"),
        ("evaluation.tasks.3.path ", *twice),
        ("evaluation.tasks.3.limit = 4 ", f"the 3 questions in {right}", "Set limit to 3 or less"),
        ("evaluation.tasks.4.path ", *twice),
    ]
    assert [lacks(text, *parts) for text, parts in zip(said, expected, strict=True)] == [[]] * 5
    assert all(text.startswith(place) for text, (place, *_) in zip(said, expected, strict=True))


def test_missing_data(tiny, own_data):
    """If the data is not prepared, the missing tokenizer and dataset are both reported, with the command that
    prepares them.
    """
    config = tiny(**{"batch.max_steps": 3})
    shutil.rmtree(own_data / "dataset")
    shutil.rmtree(own_data / "tokenizer")
    problems = found(config)
    assert [kind for kind, _ in problems] == ["data", "data"]
    assert "the tokenizer is not ready" in problems[0][1]
    assert "text_document.bin: no such file. Run `nbtrain prepare " in problems[1][1]
    [command] = re.findall(r"`nbtrain prepare ([^`]*)` to make what is missing\.$", problems[1][1])
    run, *overrides = shlex.split(command)
    assert load(run, overrides) == config


def test_a_truncated_bin(tiny, own_data):
    """A .bin file that is shorter than its index says is reported."""
    config = tiny()
    path = own_data / "dataset/mock/text_document.bin"
    size = path.stat().st_size
    os.truncate(path, size - 10)
    [(kind, message)] = found(config)
    assert kind == "data"
    assert "text_document.bin: the file is truncated:" in message
    assert "10 bytes are missing" in message


def test_a_vocabulary_smaller_than_the_data(tiny, own_data):
    """A vocabulary that is smaller than the largest id in the data is rejected, because such an id would be
    outside the embedding.
    """
    config = tiny(**NAMES, **{"tokenizer.vocab_size": 300})
    problems = found(config)
    assert any("tokenizer.vocab_size = 300" in message for _, message in problems)
    # The data are complete, so prepare would do nothing.
    assert not any("nbtrain prepare" in message for _, message in problems)


def test_data_of_other_settings(tiny, own_data):
    """Data that was prepared with other settings than those in the YAML is rejected; names and weights may
    differ.
    """
    config = tiny(**NAMES, **{"data.sources.0.num_documents": 77, "data.sources.0.name": "other"})
    [(kind, message)] = found(config)
    assert kind == "data"
    assert (
        "data/dataset/mock: the dataset was made with other settings: data.sources[0].num_documents = "
        in message
    )
    fixes = ("change data.name", "`nbtrain prepare RUN.yaml --force`")
    assert lacks(message, ", 77 in override data.sources.0.num_documents=77.", *fixes) == []
    assert not found(tiny(**{"data.sources.0.name": "other"}))
    assert not found(tiny(**{"data.sources": []}))


def test_missing_data_without_sources(tiny, own_data):
    """If there is neither data nor sources, the message says to copy the data, because prepare cannot create
    it.
    """
    shutil.rmtree(own_data / "dataset")
    [(kind, message)] = found(tiny(**{"data.sources": []}))
    assert kind == "data"
    fixes = ("Copy the dataset there", "set data.sources", "`nbtrain prepare`")
    assert lacks(message, "data/dataset/mock/text_document.bin: no such file.", *fixes) == []


def test_a_vocabulary_larger_than_the_dtype(tiny, own_data):
    """A vocabulary of 70,000 is rejected for data whose tokens are stored as uint16."""
    config = tiny(**NAMES, **{"tokenizer.vocab_size": 70_000})
    [(kind, message)] = found(config)
    assert kind == "data"
    assert "uint16 holds at most 65,535" in message


def test_another_tokenizer_than_the_data(tiny, own_data):
    """Data is rejected if another tokenizer encoded it, because its ids stand for other text, or if its
    documents end in another token.
    """
    import json

    config = tiny()
    manifest = own_data / "dataset/mock/manifest.json"
    value = json.loads(manifest.read_text())
    for changes, says in (
        ({"tokenizer_sha256": "f" * 64}, "the data was encoded with a tokenizer other than "),
        ({"eod_id": value["eod_id"] + 1}, f"the documents end in the token {value['eod_id'] + 1}, but "),
    ):
        manifest.write_text(json.dumps(value | changes))
        [(kind, message)] = found(config)
        assert kind == "error"
        assert message.startswith(f"dataset mock: {says}")
