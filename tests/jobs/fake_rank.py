"""A rank that does not train: it starts in 50 ms and writes the same heartbeats, records and messages as the
trainer.

    python fake_rank.py <run dir>        controlled by environment variables, set in backend.env:

    FAKE_STEPS          steps to make (default: the steps of the run's plan)
    FAKE_STEP_SECONDS   how long one takes (default 0.02)
    FAKE_SAVE_EVERY     a checkpoint every so many steps (default 5)
    FAKE_FAULTS         JSON list of {"rank", "attempt", "step", "do", ...}; do is one of exit (code),
                        word (outcome, message), kill (signal), stop (SIGSTOP), hang, ignore-stop,
                        torn (killed while it writes), fill (the disk), devour (memory)

A checkpoint is a folder with a manifest; training resumes from the newest.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable

from nbtrain.base import files
from nbtrain.base.run_directory.records import (
    ControlRequest,
    ExitRecord,
    Heartbeat,
    ProcessIdentity,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import JobDir, RunDir


def main(run_path: str) -> int:
    run = RunDir(run_path)
    job = JobDir(run, os.environ["NBTRAIN_JOB"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["NBTRAIN_ATTEMPT"])
    plan = {
        "steps": int(os.environ.get("FAKE_STEPS", "20")),
        "seconds": float(os.environ.get("FAKE_STEP_SECONDS", "0.02")),
        "save": int(os.environ.get("FAKE_SAVE_EVERY", "5")),
    }
    faults = [
        fault
        for fault in json.loads(os.environ.get("FAKE_FAULTS", "[]"))
        if fault.get("rank", 0) == rank and fault.get("attempt", attempt) == attempt
    ]
    stops = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    print(f"rank {rank} of {world}, attempt {attempt}, threads {os.environ['OMP_NUM_THREADS']}", flush=True)
    print(f"GPUs {gpus}", flush=True)
    steps = [step for step in run.checkpoint_steps() if run.checkpoint_manifest(step).exists()]
    first = step = saved = max(steps, default=0)
    progress = TrainingProgress(plan["steps"], 1000, num_parameters=12_345, checkpoint_step=saved or None)

    def beat(phase: str) -> None:
        progress.consumed_tokens, progress.consumed_samples = step * 64, step * 4
        progress.loss, progress.samples_per_second, progress.tokens_per_second = 5.0 - step / 100, 40.0, 640.0
        progress.checkpoint_step = saved or None
        Heartbeat(
            rank,
            attempt,
            ProcessIdentity.of(os.getpid()),
            time.time(),
            step,
            phase,
            time.time(),
            progress if rank == 0 else None,
        ).write(job.heartbeat(rank))

    def save() -> None:
        nonlocal saved
        beat("save")
        saved = step
        if rank == 0:
            folder = run.checkpoint(step)
            folder.mkdir(parents=True, exist_ok=True)
            content = b"x" * 100
            (folder / "state.bin").write_bytes(content)
            described = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            files.write_json(
                folder / "manifest.json", {"schema_version": 2, "files": {"state.bin": described}}
            )

    def say(outcome: str, message: str, detail: str = "") -> None:
        word = {"outcome": outcome, "step": step, "message": message, "detail": detail}
        with os.fdopen(int(os.environ["NBTRAIN_EXIT_FD"]), "w") as pipe:
            pipe.write(json.dumps(word))

    def wait_for(peers: Iterable[int]) -> bool:
        """Wait until every peer has reached this step, like a collective; return False if one has exited."""
        for peer in peers:
            while not reached(peer):
                if stops:
                    return False
                if ended(peer):
                    # Since its heartbeat was read, it may have reached this step and finished the run.
                    if not reached(peer):
                        return False
                    break
                time.sleep(0.002)
        return True

    def reached(peer: int) -> bool:
        """Return whether a peer has reported this step or a later one."""
        other = Heartbeat.read(job.heartbeat(peer))
        return bool(other and other.attempt == attempt and other.step >= step)

    def ended(peer: int) -> bool:
        """Return whether a peer has exited in an orderly way. Raises ConnectionError if it failed or was
        killed.
        """
        end = ExitRecord.read(job.exit_record(peer, attempt))
        if end and end.outcome in ("failed", "killed"):
            raise ConnectionError(f"connection closed by rank {peer}")
        return end is not None

    deaf = False
    done = files.read_json(job.control_ack)
    done_request = done["request_id"] if done else 0

    def acknowledge(request: ControlRequest | None) -> None:
        nonlocal done_request
        if request is None or request.request_id <= done_request:
            return
        done_request = request.request_id
        if rank == 0:
            done = {"request_id": done_request, "action": request.action, "step": step}
            files.write_json(job.control_ack, done)

    beat("build")
    while step < plan["steps"]:
        # Rank 0 goes first, so that no rank is past the step that rank 0 saves when it reads a stop.
        # A peer that has left in order was told to stop, and the ranks agree on that (parallel/agreement.py).
        agreed = False
        if rank and not deaf and not wait_for([0]):
            step, agreed = max(step - 1, first), True
        beat("train")
        if not deaf:
            agreed = not wait_for(range(1, world)) or agreed
        if step > saved and step % plan["save"] == 0:
            save()
        for fault in faults:
            if fault["step"] != step:
                continue
            what = fault["do"]
            if what == "exit":
                return fault["code"]
            if what == "word":
                say(fault["outcome"], fault["message"], fault.get("detail", ""))
                return fault.get("code", 1)
            if what == "kill":
                os.kill(os.getpid(), fault["signal"])
            if what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if what == "hang":
                while True:
                    time.sleep(1)
            if what == "ignore-stop":
                deaf = True
            if what == "fill":
                try:
                    with (run.path / "ballast").open("wb") as stream:
                        while True:
                            stream.write(bytes(4096))
                            stream.flush()
                except OSError as error:
                    say("failed", f"OSError: {error}", f"Traceback ...\nOSError: {error}")
                    return 1
            if what == "devour":
                held = []
                while True:
                    held.append(bytearray(b"x" * (16 << 20)))
            if what == "torn":
                (run.checkpoint(step) / "half").parent.mkdir(parents=True, exist_ok=True)
                (job.path / "heartbeat" / f".{rank}.json.99.tmp").write_text("{")
                os.kill(os.getpid(), signal.SIGKILL)
        request = ControlRequest.read(job.control_request)
        wanted = request.action if request and request.request_id > done_request else None
        if not deaf and (stops or agreed or wanted == "stop"):
            for peer in range(world):
                ended(peer)
            save()
            acknowledge(request)
            say("stopped", "stopped on request")
            return 0
        if wanted == "save":
            save()
            acknowledge(request)
        time.sleep(plan["seconds"])
        step += 1
    progress.validation_loss, progress.best_validation_loss, progress.test_loss = 4.5, 4.25, 4.6
    save()
    beat("end")
    say("finished", "all steps are done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
