"""Print the file that starts a run on several hosts: `jaxrl-sql launch slurm --hosts 4 --config FILE`.

Nothing is started. The file is a batch script of Slurm (`slurm`), a JobSet for Kubernetes (`jobset`), or a script for a
Cloud TPU VM (`tpu-vm`). In each, all hosts run the same `train` command in a folder that all of them see; a run that is
preempted saves, is queued again, and goes on from its last checkpoint until its `model/` is there.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxrl_sql.commands.arguments import EXIT_CODES, Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.types import InputError

GRACE_S = 300
"""How long before the end a run hears of it: a step is finished and saved in that time."""
_PORT = 8476  # JAX's own for TPUs
_RESTARTS = 1000
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")


def train_command(given: argparse.Namespace) -> list[str]:
    """Return the words that every host runs: the same each time, so that it begins the run, or goes on with it."""
    files = [word for file in given.config or () for word in ("--config", str(file))]
    return [*shlex.split(given.program), "train", *files, *given.overrides, "mesh.processes=0", "run.resume=true"]


def slurm(given: argparse.Namespace, config: TrainConfig) -> str:
    """Return a batch script: a task a host unless `--tasks` says more, queued again until the model is there."""
    asks = [
        f"--job-name={given.name}", f"--nodes={given.hosts}", f"--ntasks-per-node={given.tasks}",
        *([f"--gpus-per-node={given.chips}"] if given.chips else []),
        *([f"--partition={shlex.quote(given.partition)}"] if given.partition else []),
        *([f"--time={shlex.quote(given.time)}", f"--signal=TERM@{GRACE_S}"] if given.time else []),
        "--requeue", "--open-mode=append", f"--chdir={shlex.quote(given.folder)}", f"--output={given.name}-%j.log",
    ]  # fmt: skip
    return f"""#!/bin/bash
# Submit it with `sbatch FILE`. {given.folder}, with what the configuration names, is on storage that all hosts see.
{"".join(f"#SBATCH {one}{chr(10)}" for one in asks)}
# A SIGTERM of preemption, or {GRACE_S} s before the time limit, is for the tasks: they save and end. Who cancels a job
# sends one to this script, too, and wants no more of it.
cancelled=
trap 'cancelled=1' TERM
srun --kill-on-bad-exit=1 {shlex.join(train_command(given))}
code=$?
if [ $code -ne 0 ] || [ -n "$cancelled" ] || [ -e {shlex.quote(f"{config.run.dir}/model/config.json")} ]; then
    exit $code
fi
# It was asked to stop before its end, and goes on in its next turn.
scontrol requeue "$SLURM_JOB_ID"
"""


def jobset(given: argparse.Namespace, config: TrainConfig) -> str:
    """Return a JobSet: an indexed job of a pod a host, which is started again as a whole when a pod of it fails."""
    if not given.image:
        raise InputError("--image is missing: the container image that holds jaxrl-sql and its JAX")
    if not given.claim:
        raise InputError(
            "--claim is missing: the persistent volume claim that all pods mount at the folder of --folder"
        )
    done = shlex.quote(f"{config.run.dir}/model/config.json")
    # A pod that saved and ended before its run did is no success: a failure starts the set again.
    run = f"cd {shlex.quote(given.folder)} && {shlex.join(train_command(given))} && test -e {done}"
    # The name that a headless service gives to the pod of index 0.
    first = f"{given.name}-hosts-0-0.{given.name}:{_PORT}"
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    container: dict[str, Any] = {
        "name": "run",
        "image": given.image,
        "command": ["bash", "-c", run],
        "env": [
            {"name": "JAX_COORDINATOR_ADDRESS", "value": first},
            {"name": "JAX_NUM_PROCESSES", "value": str(given.hosts)},
            {"name": "JAX_PROCESS_ID", "valueFrom": index},
        ],
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": [{"name": "storage", "mountPath": given.folder}],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [container],
        "volumes": [{"name": "storage", "persistentVolumeClaim": {"claimName": given.claim}}],
    }
    if given.chips:
        kind = "google.com/tpu" if given.accelerator else "nvidia.com/gpu"
        container["resources"] = {"limits": {kind: given.chips}}
    if given.accelerator:
        accelerator, _, topology = given.accelerator.partition(":")
        pod["nodeSelector"] = {
            "cloud.google.com/gke-tpu-accelerator": accelerator,
            "cloud.google.com/gke-tpu-topology": topology,
        }
    job = {
        "parallelism": given.hosts,
        "completions": given.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    whole = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": given.name},
        "spec": {
            "failurePolicy": {"maxRestarts": _RESTARTS},
            "replicatedJobs": [{"name": "hosts", "replicas": 1, "template": {"spec": job}}],
        },
    }
    said = "# Submit it with `kubectl apply -f FILE`, where JobSet is installed."
    return f"{said}\n{yaml.safe_dump(whole, sort_keys=False)}"


def tpu_vm(given: argparse.Namespace, config: TrainConfig) -> str:
    """Return a script that starts the run on all hosts of a Cloud TPU VM, and again after a preemption."""
    if not (given.accelerator and given.zone):
        raise InputError("--accelerator and --zone are missing, as in --accelerator v5p-64 --zone us-east5-a")
    done, image = shlex.quote(f"{config.run.dir}/model/config.json"), given.image or "tpu-ubuntu2204-base"
    run = f"cd {shlex.quote(given.folder)} && {shlex.join(train_command(given))} && test -e {done}"
    return f"""#!/bin/bash
# Run it where gcloud is signed in. It makes a spot TPU VM of {given.hosts} hosts and starts the run on all, again after
# a preemption. {given.folder} is on storage that all hosts mount, and jaxrl-sql is installed on them (--image).
set -euo pipefail
name={shlex.quote(given.name)} zone={shlex.quote(given.zone)}
run={shlex.quote(run)}
tpu() {{ gcloud compute tpus tpu-vm "$1" "$name" --zone="$zone" "${{@:2}}"; }}
while true; do
    state=$(tpu describe --format='value(state)' 2> /dev/null || echo none)
    case $state in
        READY) ;;
        none) tpu create --spot --accelerator-type={shlex.quote(given.accelerator)} --version={shlex.quote(image)} ;;
        PREEMPTED | TERMINATED) tpu delete --quiet && continue ;;
        *) sleep 30 && continue ;;
    esac
    code=0
    tpu ssh --worker=all --command="$run" || code=$?
    [ $code -eq 0 ] && break
    # Where the machine is still READY after a while nothing took it: the run itself was wrong, and would be again.
    sleep 120
    [ "$(tpu describe --format='value(state)' 2> /dev/null)" = READY ] && exit $code
done
"""


FORMS: Mapping[str, Callable[[argparse.Namespace, TrainConfig], str]] = {
    "slurm": slurm,
    "jobset": jobset,
    "tpu-vm": tpu_vm,
}


def launch(given: argparse.Namespace) -> str:
    """Return the file; raises InputError for a configuration or options that no run could be started with."""
    config = load_config(given.config, given.overrides)
    if given.hosts < 1 or given.tasks < 1 or given.chips < 0:
        raise InputError(f"--hosts {given.hosts} --tasks {given.tasks} --chips {given.chips}: at least 1, 1 and 0")
    given.name = given.name or re.sub(r"[^a-z0-9]+", "-", Path(config.run.dir).name.lower()).strip("-")
    if not _NAME.fullmatch(given.name):
        raise InputError(f"--name {given.name!r}: small letters, digits and hyphens, a letter first, 52 at most")
    if "\n" in given.folder or not given.folder.startswith("/"):
        raise InputError(f"--folder {given.folder}: a whole path, which is the same on all hosts, is needed")
    for name in ("partition", "time"):
        if "\n" in getattr(given, name):
            raise InputError(f"--{name} {getattr(given, name)!r}: one line is needed")
    if given.tasks > 1 and given.form != "slurm":
        raise InputError(f"--tasks {given.tasks}: {given.form} starts a process a host")
    processes = given.hosts * given.tasks
    if config.mesh.processes not in (0, 1, processes):
        raise InputError(f"mesh.processes={config.mesh.processes}: {given.hosts} hosts start {processes}: leave it out")
    if given.chips:
        _check_mesh(config, given.hosts * given.chips)
    return FORMS[given.form](given, config)


def _check_mesh(config: TrainConfig, chips: int) -> None:
    """Raise InputError for a mesh that so many chips do not make up."""
    sizes = [config.mesh.data, config.mesh.fsdp, config.mesh.tensor]
    known = 1
    for size in sizes:
        known *= max(size, 1)
    if chips % known if -1 in sizes else chips != known:
        shown = "x".join(map(str, sizes))
        raise InputError(f"mesh {shown} (data x fsdp x tensor) is not made up of {chips} chips: set mesh.fsdp={chips}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print the file, and return the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EXIT_CODES)
    parser.add_argument("form", choices=tuple(FORMS), help="what starts it")
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="how many hosts the run has")
    parser.add_argument("--config", type=Path, action="append", metavar="FILE", help="YAML file; may be repeated")
    parser.add_argument(
        "--chips", type=int, default=0, metavar="N", help="accelerators of a host (0: none are asked for)"
    )
    parser.add_argument("--tasks", type=int, default=1, metavar="N", help="slurm: processes of a host (1)")
    parser.add_argument(
        "--time", default="", metavar="D-HH:MM:SS", help="slurm: a turn's limit; the run goes on in the next"
    )
    parser.add_argument("--partition", default="", metavar="NAME", help="slurm: where it is queued")
    parser.add_argument("--image", default="", metavar="NAME", help="jobset: the container's; tpu-vm: the VM's version")
    parser.add_argument("--claim", default="", metavar="NAME", help="jobset: the volume claim with the folder")
    accelerator = "jobset: KIND:TOPOLOGY, as in tpu-v5p-slice:4x4x2; tpu-vm: a type, as in v5p-64"
    parser.add_argument("--accelerator", default="", metavar="NAME", help=accelerator)
    parser.add_argument("--zone", default="", metavar="NAME", help="tpu-vm: where it is")
    parser.add_argument("--name", default="", help="what the job is called (default: the last part of run.dir)")
    folder = "where it runs, on storage that all hosts see (default: this folder)"
    parser.add_argument("--folder", default=str(Path.cwd()), metavar="DIR", help=folder)
    parser.add_argument("--program", default="jaxrl-sql", metavar="WORDS", help="how hosts call it (jaxrl-sql)")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the file's")
    given = parser.parse_intermixed_args(arguments)

    def show() -> int:
        sys.stdout.write(launch(given))
        return 0

    return report_errors(show)
