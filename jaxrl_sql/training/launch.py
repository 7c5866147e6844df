"""Files that start a run on several hosts.

The forms are a batch script of Slurm, a JobSet (a Kubernetes resource of several pods), and a script for a Cloud TPU
VM. Each restarts the run after a preemption: the same command resumes it from its last checkpoint.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from jaxrl_sql.config import MeshConfig, TrainConfig, load_config
from jaxrl_sql.types import InputError

GRACE_S = 300
"""Seconds between the signal and the end of a job: enough to finish a step and save."""
_PORT = 8476  # JAX's default port of the coordinator on TPUs
_MAX_RESTARTS = 1000
# Names of Kubernetes objects; the pods' names are longer by a suffix.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")


@dataclass(frozen=True)
class LaunchOptions:
    """Options of the command `launch`, which writes the file that starts a run on several hosts.

    - `form` is a key of FORMS. `hosts` is the number of hosts, `tasks` the number of processes per host.
    - `files` and `overrides` are the configuration files and `key=value` arguments of `train`.
    - `chips` is the number of GPUs or TPU chips per host; 0 requests none.
    - `time` and `partition` are Slurm's time limit and partition.
    - `image` is the container image (JobSet) or the VM's software version (TPU VM).
    - `claim` is the persistent volume claim that all pods mount at `folder`.
    - `accelerator` is the type of TPU (and `:topology` on GKE), `zone` its zone.
    - `name` is the name of the job; "" derives it from `run.dir`.
    - `folder` is the working folder on storage that all hosts share, `program` the command line of jaxrl-sql there.
    """

    form: str
    hosts: int
    files: Sequence[Path]
    overrides: Sequence[str]
    chips: int
    tasks: int
    time: str
    partition: str
    image: str
    claim: str
    accelerator: str
    zone: str
    name: str
    folder: str
    program: str


def train_command(launch: LaunchOptions) -> list[str]:
    """Return the command that every host runs; the same command starts the run and resumes it."""
    config_options = [argument for file in launch.files for argument in ("--config", str(file))]
    # `mesh.processes=0` takes the number of processes from the cluster's environment.
    settings = [*launch.overrides, "mesh.processes=0", "run.resume=true"]
    return [*shlex.split(launch.program), "train", *config_options, *settings]


def slurm(launch: LaunchOptions, run_folder: str) -> str:
    """Return a batch script of Slurm, which requeues the job until the model of the run exists."""
    options = [
        f"--job-name={launch.name}", f"--nodes={launch.hosts}", f"--ntasks-per-node={launch.tasks}",
        *([f"--gpus-per-node={launch.chips}"] if launch.chips else []),
        *([f"--partition={shlex.quote(launch.partition)}"] if launch.partition else []),
        *([f"--time={shlex.quote(launch.time)}", f"--signal=TERM@{GRACE_S}"] if launch.time else []),
        "--requeue", "--open-mode=append", f"--chdir={shlex.quote(launch.folder)}", f"--output={launch.name}-%j.log",
    ]  # fmt: skip
    return f"""#!/bin/bash
# Submit it with `sbatch FILE`. {launch.folder}, with what the configuration names, is on storage that all hosts see.
{"".join(f"#SBATCH {option}{chr(10)}" for option in options)}
# At a preemption, or {GRACE_S} s before the time limit, Slurm sends SIGTERM to the tasks: they save and end. scancel
# sends SIGTERM to this script, too; then the job is not requeued.
cancelled=
trap 'cancelled=1' TERM
srun --kill-on-bad-exit=1 {shlex.join(train_command(launch))}
code=$?
if [ $code -ne 0 ] || [ -n "$cancelled" ] || [ -e {shlex.quote(f"{run_folder}/model/config.json")} ]; then
    exit $code
fi
# The run was stopped before its end, and resumes when the job starts again.
scontrol requeue "$SLURM_JOB_ID"
"""


def jobset(launch: LaunchOptions, run_folder: str) -> str:
    """Return a JobSet: an indexed job with one pod per host, which restarts as a whole if a pod fails."""
    if not launch.image:
        raise InputError("--image is missing: the container image that holds jaxrl-sql and its JAX")
    if not launch.claim:
        raise InputError(
            "--claim is missing: the persistent volume claim that all pods mount at the folder of --folder"
        )
    finished_file = shlex.quote(f"{run_folder}/model/config.json")
    # A pod that was stopped before the end of the run exits with an error, so that JobSet restarts all pods.
    command = f"cd {shlex.quote(launch.folder)} && {shlex.join(train_command(launch))} && test -e {finished_file}"
    # The address of the pod of index 0, by the name that JobSet's headless service gives it.
    coordinator = f"{launch.name}-hosts-0-0.{launch.name}:{_PORT}"
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    container: dict[str, Any] = {
        "name": "run",
        "image": launch.image,
        "command": ["bash", "-c", command],
        "env": [
            {"name": "JAX_COORDINATOR_ADDRESS", "value": coordinator},
            {"name": "JAX_NUM_PROCESSES", "value": str(launch.hosts)},
            {"name": "JAX_PROCESS_ID", "valueFrom": index},
        ],
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": [{"name": "storage", "mountPath": launch.folder}],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [container],
        "volumes": [{"name": "storage", "persistentVolumeClaim": {"claimName": launch.claim}}],
    }
    if launch.chips:
        resource = "google.com/tpu" if launch.accelerator else "nvidia.com/gpu"
        container["resources"] = {"limits": {resource: launch.chips}}
    if launch.accelerator:
        accelerator, _, topology = launch.accelerator.partition(":")
        pod["nodeSelector"] = {
            "cloud.google.com/gke-tpu-accelerator": accelerator,
            "cloud.google.com/gke-tpu-topology": topology,
        }
    job = {
        "parallelism": launch.hosts,
        "completions": launch.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": launch.name},
        "spec": {
            "failurePolicy": {"maxRestarts": _MAX_RESTARTS},
            "replicatedJobs": [{"name": "hosts", "replicas": 1, "template": {"spec": job}}],
        },
    }
    comment = "# Submit it with `kubectl apply -f FILE`, where JobSet is installed."
    return f"{comment}\n{yaml.safe_dump(job_set, sort_keys=False)}"


def tpu_vm(launch: LaunchOptions, run_folder: str) -> str:
    """Return a script that creates a Cloud TPU VM and starts the run on all its hosts, again after a preemption."""
    hosts = launch.hosts
    if not (launch.accelerator and launch.zone):
        raise InputError("--accelerator and --zone are missing, as in --accelerator v5p-64 --zone us-east5-a")
    finished_file, image = shlex.quote(f"{run_folder}/model/config.json"), launch.image or "tpu-ubuntu2204-base"
    command = f"cd {shlex.quote(launch.folder)} && {shlex.join(train_command(launch))} && test -e {finished_file}"
    return f"""#!/bin/bash
# Run it where gcloud is signed in. It creates a spot TPU VM of {hosts} hosts and starts the run on all, again after
# a preemption. {launch.folder} is on storage that all hosts mount, and jaxrl-sql is installed on them (--image).
set -euo pipefail
name={shlex.quote(launch.name)} zone={shlex.quote(launch.zone)}
run={shlex.quote(command)}
tpu() {{ gcloud compute tpus tpu-vm "$1" "$name" --zone="$zone" "${{@:2}}"; }}
while true; do
    state=$(tpu describe --format='value(state)' 2> /dev/null || echo none)
    case $state in
        READY) ;;
        none) tpu create --spot --accelerator-type={shlex.quote(launch.accelerator)} --version={shlex.quote(image)} ;;
        PREEMPTED | TERMINATED) tpu delete --quiet && continue ;;
        *) sleep 30 && continue ;;
    esac
    code=0
    tpu ssh --worker=all --command="$run" || code=$?
    [ $code -eq 0 ] && break
    # If the machine is still READY after a while, it was not preempted: the run itself failed and would fail again.
    sleep 120
    [ "$(tpu describe --format='value(state)' 2> /dev/null)" = READY ] && exit $code
done
"""


FORMS: Mapping[str, Callable[[LaunchOptions, str], str]] = {
    "slurm": slurm,
    "jobset": jobset,
    "tpu-vm": tpu_vm,
}


def launch_file(launch: LaunchOptions) -> str:
    """Return the content of the file; raises InputError for a configuration or options that cannot start a run."""
    config = load_config(TrainConfig, launch.files, launch.overrides)
    if launch.hosts < 1 or launch.tasks < 1 or launch.chips < 0:
        raise InputError(f"--hosts {launch.hosts} --tasks {launch.tasks} --chips {launch.chips}: at least 1, 1 and 0")
    name = launch.name or re.sub(r"[^a-z0-9]+", "-", Path(config.run.dir).name.lower()).strip("-")
    if not _NAME.fullmatch(name):
        raise InputError(f"--name {name!r}: small letters, digits and hyphens, a letter first, 52 at most")
    if "\n" in launch.folder or not launch.folder.startswith("/"):
        raise InputError(f"--folder {launch.folder}: must be an absolute path that is the same on all hosts")
    for option, value in (("partition", launch.partition), ("time", launch.time)):
        if "\n" in value:
            raise InputError(f"--{option} {value!r}: one line is needed")
    if launch.tasks > 1 and launch.form != "slurm":
        raise InputError(f"--tasks {launch.tasks}: {launch.form} starts a process a host")
    processes, num_processes = launch.hosts * launch.tasks, config.mesh.processes
    if num_processes not in (0, 1, processes):
        raise InputError(f"mesh.processes={num_processes}: {launch.hosts} hosts start {processes}: leave it out")
    if launch.chips:
        _check_mesh(config.mesh, launch.hosts * launch.chips)
    return FORMS[launch.form](replace(launch, name=name), config.run.dir)


def _check_mesh(mesh: MeshConfig, chips: int) -> None:
    """Raise InputError for a mesh whose size is not the number of chips."""
    sizes = [mesh.data, mesh.fsdp, mesh.tensor]
    num_devices = 1
    for size in sizes:
        num_devices *= max(size, 1)
    if chips % num_devices if -1 in sizes else chips != num_devices:
        mesh_text = "x".join(map(str, sizes))
        raise InputError(
            f"mesh {mesh_text} (data x fsdp x tensor) is not made up of {chips} chips: set mesh.fsdp={chips}"
        )
