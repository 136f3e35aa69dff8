"""Provenance of an attempt: everything that its results depend on, written by rank 0 before the first step.

    output/<run>/jobs/<job>/provenance/<attempt>.json      settings, versions, device, data
    output/<run>/code/<sha256>.json                        SHA-256 of each file of nbtrain

monitor/run/certificate.py makes the certificate of the run from these files, and proof/reproduce.py compares
them with the machine on which a part of the run is trained again.
"""

from nbtrain.base import files
from nbtrain.base.code_hashes import code_hashes
from nbtrain.base.run_directory.records import Provenance
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.checkpoint.live import resume_report
from nbtrain.config.load.effect import settings_with_effect
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.manifest import data_hashes
from nbtrain.parallel.startup import World
from nbtrain.train.build import Built


def write_provenance(
    run: RunDir, job: JobDir, attempt: int, config: RunConfig, built: Built, world: World
) -> None:
    """Write the provenance of an attempt, after its checkpoint has been loaded. Only rank 0 calls it."""
    state, live = built.state, built.saver.live
    made = resume_report.conditions(world.device)
    if not (code := run.code(made["nbtrain_sha256"])).is_file():
        code.parent.mkdir(exist_ok=True)
        files.write_json(code, code_hashes())
    data = state.data.to_dict() | {
        "tokenizer_sha256": live.tokenizer_sha256,
        "next_batch_sha256": live.next_batch_sha256(state.data),
    }
    if live.code_sha256 is not None:
        # SHA-256 of the user's file that `code` names.
        data["own_code_sha256"] = live.code_sha256
    if config.init_from is not None and (state.step == 0 or run.init_from_json.is_file()):
        # Imported only if needed, because it loads the readers of other programs' weights.
        from nbtrain.checkpoint.initial import start_sha256

        data["initial_weights_sha256"] = start_sha256(live)
    record = Provenance(
        job.job_id,
        attempt,
        state.step,
        settings_with_effect(config),
        made["nbtrain_sha256"],
        made["versions"],
        made["device"],
        made["variables"],
        data,
        data_hashes(built.datasets.manifest),
    )
    path = job.provenance(attempt)
    path.parent.mkdir(exist_ok=True)
    record.write(path)
