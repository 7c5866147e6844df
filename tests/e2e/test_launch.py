"""Scripts printed by `launch`: Slurm's runs under a real slurmctld and slurmd; the others are parsed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl_sql.commands.launch import main

ROOT = Path(__file__).parents[2]
BASH = shutil.which("bash") or "/bin/bash"
CONFIG = "model.checkpoint=m data.dir=d"
DAEMONS = ("munged", "slurmctld", "slurmd")
SLURM = """\
ClusterName=here
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=300
ReturnToService=2
NodeName=localhost CPUs=2 State=UNKNOWN
PartitionName=low Nodes=localhost Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=300
PartitionName=high Nodes=localhost MaxTime=INFINITE State=UP PriorityTier=2
"""


def output_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(shlex.split(command)) == 0
    return capsys.readouterr().out


def words_of(text: str) -> list[str]:
    """Return the words of the line that starts the run."""
    (line,) = [line for line in text.splitlines() if " train " in line]
    return shlex.split(line)


def lint(script: str) -> None:
    """Parse a script with bash, and with shellcheck if it is installed."""
    subprocess.run([BASH, "-n"], input=script, text=True, check=True)
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, "-"], input=script, text=True, check=True)


def test_slurm_file_requests_the_configured_resources(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "slurm --hosts 4 --chips 8 --time 12:00:00 --partition long --folder '/shared/a b' --config configs/arctic.yaml"
    )
    text = output_of(f"{command} mesh.fsdp=32 'run.dir=runs/one two' --name one", capsys)
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert options == [
        "--job-name=one", "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--partition=long",
        "--time=12:00:00", "--signal=TERM@300", "--requeue", "--open-mode=append", "--chdir='/shared/a b'",
        "--output=one-%j.log",
    ]  # fmt: skip
    assert words_of(text) == [
        "srun", "--kill-on-bad-exit=1", "jaxrl-sql", "train", "--config", "configs/arctic.yaml", "mesh.fsdp=32",
        "run.dir=runs/one two", "mesh.processes=0", "run.resume=true",
    ]  # fmt: skip
    lint(text)


def test_jobset_starts_a_pod_per_host(capsys: pytest.CaptureFixture[str]) -> None:
    command = "jobset --hosts 4 --chips 4 --image i:1 --claim c --accelerator tpu-v5p-slice:2x2x4 --folder /shared"
    result = yaml.safe_load(output_of(f"{command} {CONFIG} mesh.fsdp=16 run.dir=runs/One_2", capsys))
    assert (result["kind"], result["metadata"], result["spec"]["failurePolicy"]) == (
        "JobSet", {"name": "one-2"}, {"maxRestarts": 1000},
    )  # fmt: skip
    (hosts,) = result["spec"]["replicatedJobs"]
    job = hosts["template"]["spec"]
    assert [job[name] for name in ("parallelism", "completions", "completionMode", "backoffLimit")] == [
        4,
        4,
        "Indexed",
        0,
    ]
    pod = job["template"]["spec"]
    assert set(pod["nodeSelector"].values()) == {"tpu-v5p-slice", "2x2x4"}
    (container,) = pod["containers"]
    arguments = {item["name"]: item.get("value") for item in container["env"]}
    assert arguments["JAX_COORDINATOR_ADDRESS"] == "one-2-hosts-0-0.one-2:8476"
    assert arguments["JAX_NUM_PROCESSES"] == "4"
    assert container["resources"] == {"limits": {"google.com/tpu": 4}}
    assert container["command"][2].endswith(" && test -e runs/One_2/model/config.json")
    gpus = yaml.safe_load(output_of(f"jobset --hosts 2 --chips 8 --image i --claim c {CONFIG} mesh.data=16", capsys))
    pod = gpus["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert "nodeSelector" not in pod


def strict(node: Any) -> Any:
    """Return a Kubernetes schema as JSON Schema that rejects unknown fields."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    result = {name: strict(entry) for name, entry in node.items()}
    if node.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


@pytest.mark.skipif("JAXRL_SQL_JOBSET_CRD" not in os.environ, reason="JAXRL_SQL_JOBSET_CRD names JobSet's definition")
@pytest.mark.parametrize(
    "more", ["--chips 4 --accelerator tpu-v5p-slice:2x2x4 mesh.fsdp=16", "--chips 8 mesh.data=32", ""]
)
def test_jobset_matches_its_definition(more: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is in JobSet's repository: config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml."""
    definition = yaml.load(Path(os.environ["JAXRL_SQL_JOBSET_CRD"]).read_text(), Loader=yaml.CSafeLoader)
    (schema,) = [
        version["schema"]["openAPIV3Schema"]
        for version in definition["spec"]["versions"]
        if version["name"] == "v1alpha2"
    ]
    schema["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}}}
    checked = pytest.importorskip("jsonschema").Draft202012Validator(strict(schema))
    result = yaml.safe_load(output_of(f"jobset --hosts 4 --image i:1 --claim c --folder /shared {more}", capsys))
    assert [f"{list(error.path)}: {error.message}" for error in checked.iter_errors(result)] == []
    result["spec"]["replicatedJobs"][0]["template"]["spec"]["paralelism"] = 4
    assert len(list(checked.iter_errors(result))) == 1


def test_tpu_vm_script_restarts_after_preemption(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The script runs with a fake `gcloud` that keeps the machine's state in a file and preempts it once."""
    text = output_of(
        f"tpu-vm --hosts 2 --accelerator v5p-16 --zone us-east5-a --folder /shared {CONFIG} run.dir=runs/one", capsys
    )
    lint(text)
    assert "sleep 120" in text
    (tmp_path / "file").write_text(text.replace("sleep 120", "sleep 0"))
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(
        f"""#!/bin/bash
cd {tmp_path}
echo "$4 $5 $6 ${{7:-}}" >> calls
case $4 in
    describe) cat state ;;
    create) echo READY > state ;;
    delete) rm state ;;
    ssh) [ -e tried ] && exit 0; touch tried; echo PREEMPTED > state; exit 255 ;;
esac
"""
    )
    gcloud.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([BASH, str(tmp_path / "file")], env={**os.environ, **path}, timeout=300, check=False)
    assert done.returncode == 0
    calls = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert [call for call in calls if call != "describe"] == ["create", "ssh", "delete", "create", "ssh"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("slurm", "required: --hosts"),
        ("slurn --hosts 2", "invalid choice: 'slurn'"),
        (f"slurm --hosts 0 {CONFIG}", "--hosts 0"),
        (
            "slurm --hosts 2 --chips 8 mesh.fsdp=8 model.checkpoint=m data.dir=d",
            "is not made up of 16 chips: set mesh.fsdp=16",
        ),
        (
            "slurm --hosts 2 mesh.processes=3 model.checkpoint=m data.dir=d",
            "mesh.processes=3: 2 hosts start 2: leave it out",
        ),
        ("slurm --hosts 2 --config none.yaml", "none.yaml: No such file"),
        ("slurm --hosts 2 grpo.step=3", "the nearest is grpo.steps"),
        (f"slurm --hosts 2 --name 'a b' {CONFIG}", "--name 'a b': small letters"),
        (f"slurm --hosts 2 --folder here {CONFIG}", "--folder here: must be an absolute path"),
        (f"slurm --hosts 2 --partition 'a\nb' {CONFIG}", "--partition 'a\\nb': one line"),
        (f"jobset --hosts 2 --tasks 2 {CONFIG}", "--tasks 2: jobset starts a process a host"),
        (f"tpu-vm --hosts 2 --tasks 2 {CONFIG}", "--tasks 2: tpu-vm starts a process a host"),
        (f"jobset --hosts 2 {CONFIG}", "--image is missing"),
        (f"jobset --hosts 2 --image i {CONFIG}", "--claim is missing"),
        (f"tpu-vm --hosts 2 {CONFIG}", "--accelerator and --zone are missing"),
    ],
)
def test_invalid_launch_settings_are_reported_in_one_line(
    message: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(shlex.split(message))
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert shown.err.count("\n") == 1
    assert error in shown.err


Slurm = Callable[..., str]


def wait(holds: Callable[[], Any], what: Callable[[], str], seconds: float) -> Any:
    """Wait until a condition holds and return its value; otherwise fail with the available logs."""
    end = time.monotonic() + seconds
    while not (result := holds()):
        assert time.monotonic() < end, what()
        time.sleep(0.2)
    return result


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Start munged, slurmctld and slurmd for this module; return a function that runs Slurm commands."""
    programs = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in DAEMONS}
    if None in programs.values() or os.geteuid() != 0:
        missing = "needs Slurm, run as root (Debian: apt-get install slurmctld slurmd slurm-client munge)"
        if os.environ.get("SQLEXEC_SERVERS") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("slurm")
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(free.getsockname()[1])
    (folder / "slurm.conf").write_text(SLURM.format(folder=folder, ports=ports))
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    log = (folder / "out").open("w")

    def start(name: str, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(programs[name]), *options], env=env, stdout=log, stderr=log, start_new_session=True
        )

    def ask(*text: str) -> str:
        return subprocess.run(text, env=env, capture_output=True, text=True, check=True, timeout=300).stdout

    def logs() -> str:
        files = [folder / name for name in ("out", "slurmctld.log", "slurmd.log")]
        return "\n".join(file.read_text()[-3000:] for file in files if file.exists())

    def is_idle() -> bool:
        phrases = [shutil.which("sinfo") or "", "-h", "-o", "%T"]
        return "idle" in subprocess.run(phrases, env=env, capture_output=True, text=True, check=False).stdout

    options = [
        f"--{entry}={folder}/munge.{entry.partition('-')[0]}"
        for entry in ("socket", "pid-file", "log-file", "seed-file")
    ]
    started = [start("munged", "--foreground", "--force", f"--key-file={folder}/key", *options)]
    try:
        wait((folder / "munge.socket").exists, logs, 300)
        started += [start("slurmctld", "-D", "-c"), start("slurmd", "-D", "-N", "localhost")]
        wait(is_idle, logs, 300)
        yield ask
    finally:
        for item in reversed(started):
            item.send_signal(signal.SIGTERM)
        for item in reversed(started):
            try:
                item.wait(60)
            except subprocess.TimeoutExpired:
                item.kill()
        log.close()


def settings(data: Path, run: Path, cache: Path) -> list[str]:
    return [
        "model.init=plain", "model.compute_dtype=same", "data.prompt=compact", "data.evals=[dev_unseen]",
        "grpo.optim.lr=1e-4", "sft.optim.lr=1e-3",
        f"data.dir={data}", f"data.tokenizer.path={data}/tokenizer", f"run.dir={run}",
        "data.max_prompt_tokens=320", "model.d_model=32", "model.n_layers=1", "model.n_heads=2", "model.n_kv_heads=1",
        "model.head_dim=16", "model.d_ff=48", "sft.steps=0", "grpo.steps=6", "grpo.prompts=2", "grpo.num_generations=2",
        "sampling.max_new_tokens=12", "rollout.max_num_seqs=4", "validation.max_num_seqs=4", "run.pad_to_max=true",
        "validation.sampling.max_new_tokens=12", "run.checkpoint_every=1", "run.display=plain", "run.trackers=[]",
        "mesh.data=2", f"run.compilation_cache={cache}",
    ]  # fmt: skip


def read_without_times(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in rows]


class Job:
    """A run of two tasks in the preemptible partition, started by the output of `launch`."""

    def __init__(self, slurm: Slurm, name: str, folder: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.slurm, self.run = slurm, folder / name
        options = [
            "slurm",
            "--hosts",
            "1",
            "--tasks",
            "2",
            "--partition",
            "low",
            "--name",
            name,
            "--folder",
            str(folder),
        ]
        program = ["--program", f"{sys.executable} -m jaxrl_sql"]
        text = output_of(shlex.join([*options, *program, *settings(data, self.run, folder / "cache")]), capsys)
        (folder / f"{name}.sh").write_text(text)
        self.id = slurm("sbatch", "--parsable", str(folder / f"{name}.sh")).strip()
        self.file = folder / f"{name}-{self.id}.log"

    def log(self) -> str:
        return self.file.read_text() if self.file.exists() else self.shown()

    def shown(self) -> str:
        return self.slurm("scontrol", "show", "job", "--oneliner", self.id)

    def state(self) -> str:
        return self.shown().partition("JobState=")[2].split()[0]

    def wait_for_steps(self, count: int) -> None:
        metrics = self.run / "metrics.jsonl"
        wait(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > count, self.log, 600)

    def wait_for_end(self) -> str:
        going = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "PREEMPTED", "REQUEUED")
        wait(lambda: self.state() not in going, self.log, 900)
        return self.state()


@pytest.fixture
def submit(
    slurm: Slurm, small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Job]:
    """Return a function that submits a run by name."""
    for name, value in (("PYTHONPATH", str(ROOT)), ("JAX_PLATFORMS", "cpu"), ("JAX_NUM_CPU_DEVICES", "1")):
        monkeypatch.setenv(name, value)  # jobs inherit the environment
    return lambda name: Job(slurm, name, tmp_path, small_data, capsys)


@pytest.mark.slow
def test_a_job_runs_in_a_folder_with_blanks_in_its_name(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / 'it\'s "a" folder'
    (folder / "run" / "model").mkdir(parents=True)
    (folder / "run" / "model" / "config.json").touch()  # the run is complete: the job is not requeued
    command = ["slurm", "--hosts", "1", "--name", "here", "--folder", str(folder), "--program", "bash -c pwd"]
    (tmp_path / "here.sh").write_text(output_of(shlex.join([*command, *CONFIG.split(), "run.dir=run"]), capsys))
    job = slurm("sbatch", "--parsable", str(tmp_path / "here.sh")).strip()
    wait(lambda: "JobState=COMPLETED" in slurm("scontrol", "show", "job", job), lambda: job, 300)
    assert (folder / f"here-{job}.log").read_text() == f"{folder}\n"


@pytest.mark.nightly
def test_a_preempted_run_is_requeued_and_is_bit_equal(
    slurm: Slurm, submit: Callable[[str], Job], tmp_path: Path
) -> None:
    """A job in a higher partition takes the run's node during the run and later releases it."""
    alone = submit("whole")
    assert alone.wait_for_end() == "COMPLETED", alone.log()
    job = submit("preempted")
    job.wait_for_steps(2)
    wanted = ["--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1"]
    urgent = slurm("sbatch", "--parsable", *wanted).strip()
    wait(lambda: "Restarts=1" in job.shown(), job.log, 300)
    assert job.wait_for_end() == "COMPLETED", job.log()
    assert "JobState=COMPLETED" in slurm("scontrol", "show", "job", urgent)
    output = job.log()
    assert "received SIGTERM: saving" in output
    assert "resuming from step" in output
    assert output.count("done in ") == 1
    whole, preempted = alone.run, job.run
    assert read_without_times(preempted / "metrics.jsonl") == read_without_times(whole / "metrics.jsonl")
    assert (preempted / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    weights = [folder / "model" / "model.safetensors" for folder in (whole, preempted)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
def test_a_cancelled_run_is_not_requeued(slurm: Slurm, submit: Callable[[str], Job]) -> None:
    job = submit("cancelled")
    job.wait_for_steps(2)
    slurm("scancel", job.id)
    assert job.wait_for_end() == "CANCELLED", job.log()
    wait(lambda: "stopped; resume with --resume" in job.log(), job.log, 300)
    time.sleep(3)
    assert "JobState=CANCELLED" in job.shown()
    assert "Restarts=0" in job.shown()
