"""Agents on the hosts of a Cloud TPU slice, over ssh.

A slice is named (``--tpu NAME``): gcloud says which hosts it has, and how to log in to each of them
(``gcloud compute tpus tpu-vm ssh --dry-run``); that login is then carried out without gcloud, which
would stay as a process for each host and log in again by itself. Or its hosts are named
(``--hosts``), or this process runs on one of them, whose metadata names all.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from jaxcluster.errors import LaunchError, LauncherUnavailable, UsageError
from jaxcluster.host.facts import host_tpu_chips
from jaxcluster.host.tpus import tpu_worker
from jaxcluster.launchers.base import AgentOptions, End, LaunchPlan, Reason, Wait
from jaxcluster.launchers.detection import Inside, Surroundings
from jaxcluster.launchers.hosts import Host
from jaxcluster.launchers.reasons import last_line, run_briefly
from jaxcluster.launchers.ssh import DEFAULTS, FIRST, SSH
from jaxcluster.options.table import NO_OPTION, Field, Option
from jaxcluster.options.value_types import SWITCH, TEXT
from jaxcluster.text import plural

GCLOUD_S = 60.0  # each of its commands takes one to three seconds
POLL_S = 5.0  # how often gcloud is asked for what is waited for
MISSES = 3  # so often in a row it may fail meanwhile
EXAMPLE = "--launcher tpu --tpu NAME --zone us-central2-b"


@dataclass(frozen=True)
class Login:
    """How gcloud would log in to one worker.

    Attributes:
      ssh: its ssh with all options.
      address: ``USER@ADDRESS``.
    """

    ssh: tuple[str, ...]
    address: str


@dataclass(frozen=True)
class TPU(SSH):
    """``--launcher tpu``; what else ssh is to be given, as for ``--launcher ssh``.

    Attributes:
      tpu: the slice's name, or its queued resource's; empty where the hosts are named.
      zone: as for gcloud.
      project: as for gcloud.
      internal_ip: log in to the hosts' internal addresses.
      gcloud: the command.
      logins: how each of ``hosts`` is logged in to where gcloud has said so; ``prepared`` asks.
      health: what gcloud says of the slice's health, where it is not well; ``prepared`` asks.
    """

    tpu: str = ""
    zone: str = ""
    project: str = ""
    internal_ip: bool = False
    gcloud: str = "gcloud"
    logins: tuple[Login, ...] = ()
    health: str = ""

    name = "tpu"
    start = "--launcher tpu --tpu my-pod --zone us-central2-b"
    example = "%jaxcluster start --launcher tpu --tpu NAME --zone us-central2-b"
    platform = "tpu"  # a slice whose chips can't be seen is no reason for CPU
    options = (
        *SSH.options,
        Option("--tpu", TEXT, "NAME", "a TPU slice, or its queued resource, as gcloud names it",
            "my-pod --zone us-central2-b", start="--launcher tpu",
            field=Field("TPU", "As gcloud names it; empty for the one that this runs on", "my-pod"),
            pattern=NO_OPTION),
        Option("--zone", TEXT, "ZONE", "as for gcloud", "us-central2-b",
            start="--launcher tpu --tpu my-pod", field=Field("Zone")),
        Option("--project", TEXT, "NAME", "as for gcloud", "mine", field=Field("Project")),
        Option("--internal-ip", SWITCH, "", "log in to the hosts' internal addresses"),
    )  # fmt: skip

    needs_hosts = False

    @classmethod
    def of(cls, given: dict[str, Any], num_processes: int | None, what: str = "") -> Self:
        made = super().of(given, num_processes)
        if made.hosts and made.tpu:
            raise UsageError("--tpu and --hosts can't be used together.", "Leave out one of them.")
        for flag in ("--zone", "--project", "--internal-ip"):
            if given.get(flag[2:].replace("-", "_")) and not made.tpu:
                raise UsageError(f"{flag} goes with --tpu NAME.", cls.example)
        return made

    @classmethod
    def found_around(cls, around: Surroundings) -> Inside | None:
        found = around.worker()
        if found is None or (len(found.hosts) == 1 and found.slices == 1):
            return None  # this host is all of it, and what a start takes by default
        what = f"a TPU slice of {plural(len(found.hosts), 'host')}, as its worker {found.number}"
        if found.slices > 1:
            what = f"{plural(found.slices, 'TPU slice')} that work together (Multislice)"
            return Inside(what, cls.name, obstacle="jaxcluster starts ranks on one slice only")
        return Inside(what, cls.name)

    def granted(self, environ: Mapping[str, str], wait: Wait) -> TPU:
        """A queued resource is waited for until it is a slice, and that until it is made."""
        return self._described(environ, wait) if self.tpu else self.prepared(environ)

    def prepared(self, environ: Mapping[str, str]) -> TPU:
        if self.tpu:
            return self._described(environ)
        hosts = self.hosts
        if not hosts:
            found = tpu_worker(host_tpu_chips(), environ)
            if found is None:
                raise UsageError(
                    "--launcher tpu needs the name of a slice, or its hosts: this machine is not "
                    "a TPU host.",
                    f"For example: {EXAMPLE}   or   --launcher tpu --hosts t0,t1",
                )
            hosts = tuple(Host(name) for name in found.hosts)
        return replace(self, hosts=hosts)._as_ssh(environ)

    def _as_ssh(self, environ: Mapping[str, str]) -> TPU:
        ready = super().prepared(environ)
        assert isinstance(ready, TPU)
        return ready

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        plan = super().render(agent, folder)
        # One process per host, unless the user says otherwise: all others need TPU_TOPOLOGY.
        ranks = plan.ranks or (1,) * plan.num_hosts
        notes = (f"gcloud says that {self.tpu} is {self.health}",) if self.health else ()
        return replace(plan, ranks=ranks, notes=notes)

    def _base(self, host: Host) -> list[str]:
        if not self.logins:
            return super()._base(host)
        login = self.logins[self.hosts.index(host)]
        options = (*FIRST, *self.ssh_option, *DEFAULTS)
        return [*login.ssh, *(word for option in options for word in ("-o", option))]

    def _address(self, host: Host) -> str:
        return self.logins[self.hosts.index(host)].address if self.logins else host.name

    def _typed(self, number: int) -> str:
        if not self.tpu:
            return super()._typed(number)
        return shlex.join([*self._gcloud("tpu-vm", "ssh"), f"--worker={number}", "--command"])

    def explain(self, end: End, hosts: Sequence[str] = ()) -> Reason:
        found = super().explain(end, hosts)
        if self.logins and "refused our key" in found.message:
            # gcloud's dry run makes no key known to the slice: only a login by gcloud does.
            once = shlex.join([*self._gcloud("tpu-vm", "ssh"), "--worker=all", "--command=true"])
            return replace(found, hint=f"Let gcloud add your key there, once: {once}")
        return found

    # -- gcloud

    def _gcloud(self, kind: str, verb: str, name: str = "") -> list[str]:
        """A command on the slice, or on another resource of this name."""
        user = f"{self.user}@" if self.user and verb == "ssh" else ""
        return [
            self.gcloud, "compute", "tpus", kind, verb, f"{user}{name or self.tpu}",
            *([f"--zone={self.zone}"] if self.zone else []),
            *([f"--project={self.project}"] if self.project else []),
            *(["--internal-ip"] if self.internal_ip and verb == "ssh" else []),
        ]  # fmt: skip

    def _described(self, environ: Mapping[str, str], wait: Wait | None = None) -> TPU:
        """With the slice's hosts, and how to log in to them.

        Args:
          wait: how a slice that is not there yet is waited for; None: it is an error.

        Raises:
          LauncherUnavailable: there is no gcloud.
          LaunchError: there is no such slice, it is not ready, or gcloud can't ask.
        """
        if shutil.which(self.gcloud, path=environ.get("PATH")) is None:
            raise LauncherUnavailable(
                f"There is no {self.gcloud} on this machine.",
                "Install the Google Cloud CLI, or name the slice's hosts: --hosts t0,t1",
            )
        name, told = self._slice(environ, wait)
        number = num_workers(told, name, shlex.join(self._gcloud("tpu-vm", "start", name)))
        health = str(told.get("health", ""))
        named = replace(self, tpu=name, health="" if health == "HEALTHY" else health)
        hosts = tuple(Host(f"{name}-w{worker}") for worker in range(number))
        if self._is_plain:
            addresses = endpoints(told, self.internal_ip)
            plain = replace(named, hosts=tuple(Host(a, user=self.user) for a in addresses))
            return plain._as_ssh(environ)
        argv = [*named._gcloud("tpu-vm", "ssh"), "--worker=all", "--dry-run", "--command=true"]
        lines = named._run(environ, argv)
        if isinstance(lines, Reason):
            raise LaunchError(lines.message, lines.hint)
        logins = tuple(filter(None, map(parse_login, lines.splitlines())))
        if len(logins) != number:
            raise LaunchError(
                f"The TPU slice {name} has {number} hosts, and gcloud logs in to {len(logins)}.",
                f"Try: {shlex.join(argv)}",
            )
        return replace(named, hosts=hosts, logins=logins)

    def _slice(
        self, environ: Mapping[str, str], wait: Wait | None
    ) -> tuple[str, Mapping[str, Any]]:
        """The slice's name, and what gcloud says of it once it is not waited for any more."""
        before, misses = "", 0
        while True:
            name, told, pending = self._look(environ, wait is not None)
            misses = misses + 1 if isinstance(told, Reason) else 0
            if isinstance(told, Reason) and before and misses < MISSES:
                pending = before  # a wait of an hour does not end with a network's bad minute
            if wait is None or not pending:
                break
            if (left_s := wait.left_s()) <= 0:
                raise LaunchError(
                    f"The TPU was not ready in time: {pending}.",
                    "Wait longer: --timeout 3600   The request stays queued. To cancel it: "
                    f"{self._typed_delete()}",
                )
            before = pending
            wait.say(f"waiting for the TPU: {pending} ...")
            wait.pause(min(POLL_S, left_s))
        if isinstance(told, Reason):
            raise LaunchError(told.message, told.hint)
        return name, told

    def _look(
        self, environ: Mapping[str, str], waits: bool
    ) -> tuple[str, Mapping[str, Any] | Reason, str]:
        """(the slice's name, what gcloud says of it, what it has to wait for).

        Raises:
          LaunchError: a queued resource of this name is no slice, and ``waits`` does not help.
        """
        name = self.tpu
        told = self._ask(environ, "tpu-vm", "describe", name)
        if isinstance(told, Reason) and "NOT_FOUND" in told.message:
            resource = self._ask(environ, "queued-resources", "describe", name)
            if not isinstance(resource, Reason):
                if waits and (pending := queued(resource, name)):
                    return name, {}, pending
                name = node_of(resource, name, self._typed_delete())
                told = self._ask(environ, "tpu-vm", "describe", name)
        pending = "" if isinstance(told, Reason) or not waits else coming(told, name)
        return name, told, pending

    def _typed_delete(self) -> str:
        return shlex.join(self._gcloud("queued-resources", "delete"))

    @property
    def _is_plain(self) -> bool:
        """Whether the user has said how to log in: then to the hosts' addresses, without gcloud."""
        return bool(self.ssh_config or self.jump or self.port or self.ssh != ("ssh",))

    def _ask(
        self, environ: Mapping[str, str], kind: str, verb: str, name: str
    ) -> dict[str, Any] | Reason:
        argv = [*self._gcloud(kind, verb, name), "--format=json"]
        said = self._run(environ, argv)
        if isinstance(said, Reason):
            return said
        try:
            found = json.loads(said)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            return Reason(f"gcloud's answer is not understood: {said[:200]!r}.", shlex.join(argv))
        return found

    def _run(self, environ: Mapping[str, str], argv: Sequence[str]) -> str | Reason:
        """What a command of gcloud's prints; else why it failed."""
        try:
            done = run_briefly([*argv, "--quiet"], GCLOUD_S, environ)
        except subprocess.TimeoutExpired:
            return Reason(f"gcloud did not answer within {GCLOUD_S:.0f} s.", shlex.join(argv))
        except OSError as error:
            return Reason(f"gcloud can't be run: {error}.", shlex.join(argv))
        return done.stdout if done.returncode == 0 else explain_gcloud(done.stderr, self.tpu, argv)


# ------------------------------------------------------------------------- what gcloud says


def parse_login(line: str) -> Login | None:
    """A line of ``gcloud compute tpus tpu-vm ssh --dry-run --command=true``; None for another.

    It prints the words of a command joined by blanks: ``ssh -T -i KEY -o A=b ME@1.2.3.4 -- true``.
    """
    words = line.split()
    if len(words) < 4 or words[-2:] != ["--", "true"] or not words[0].endswith("ssh"):
        return None
    return Login(tuple(words[:-3]), words[-3])


def endpoints(node: Mapping[str, Any], internal: bool) -> list[str]:
    """The addresses of a slice's hosts, in the order of their worker numbers."""
    found = []
    for one in node.get("networkEndpoints", []):
        external = (one.get("accessConfig") or {}).get("externalIp")
        found.append(str((not internal and external) or one.get("ipAddress", "")))
    return found


def num_workers(node: Mapping[str, Any], name: str, start: str) -> int:
    """How many hosts a slice has.

    Args:
      node: what gcloud's describe says of it.
      start: gcloud's command that starts it.

    Raises:
      LaunchError: it is not ready, or one of its hosts is missing.
    """
    state = str(node.get("state", ""))
    if state != "READY":
        again = "Start again when it is READY."
        hints = {"STOPPED": f"Start it: {start}", "STOPPING": f"Then start it: {start}"}
        if state in ("PREEMPTED", "TERMINATED", "DELETING"):
            again = "It will not come back: delete it and create another."
        raise LaunchError(
            f"The TPU slice {name} is {state or 'not READY'}.", hints.get(state, again)
        )
    addresses = endpoints(node, internal=True)
    gone = [number for number, address in enumerate(addresses) if not address]
    if gone or not addresses:
        which = f"worker {gone[0]}" if gone else "every worker"
        health = node.get("healthDescription") or node.get("health") or "gcloud gives no reason"
        raise LaunchError(
            f"The TPU slice {name} lacks a host: {which} has no address ({health}).",
            "A slice that lacks a host can't compute: repair it, or create it again.",
        )
    return len(addresses)


# Cloud TPU API v2, QueuedResourceState.State and Node.State: those that become ACTIVE and READY.
_QUEUED = {
    "CREATING": "it is being created",
    "ACCEPTED": "it waits for its turn",
    "WAITING_FOR_RESOURCES": "there is no capacity for it yet",
    "PROVISIONING": "it has its capacity, and its hosts are being created",
}
_COMING = ("CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING", "UNHIDING")


def resource_state(resource: Mapping[str, Any]) -> str:
    """A queued resource's state; empty where gcloud names none."""
    state = resource.get("state", {})
    return str(state.get("state", "")) if isinstance(state, Mapping) else str(state)


def queued(resource: Mapping[str, Any], name: str) -> str:
    """What a queued resource waits for; empty for one that is ACTIVE, or never will be."""
    state = resource_state(resource)
    why = _QUEUED.get(state)
    return f"the queued resource {name} is {state} ({why})" if why else ""


def coming(node: Mapping[str, Any], name: str) -> str:
    """That a slice is going to be READY; empty for one that is, or is not going to be."""
    state = str(node.get("state", ""))
    return f"the slice {name} is {state}" if state in _COMING else ""


def node_of(resource: Mapping[str, Any], name: str, delete: str) -> str:
    """The slice that a queued resource has become.

    Args:
      delete: gcloud's command that removes it.

    Raises:
      LaunchError: it has not, or it is several.
    """
    state = resource_state(resource)
    if state != "ACTIVE":
        hint = "A start waits until it is ACTIVE: --timeout 3600"
        if state not in _QUEUED:
            hint = f"It will not become one. Delete it: {delete}   Then request it again."
        told = resource.get("state")
        told = told if isinstance(told, Mapping) else {}
        why = (told.get("failedData") or {}).get("error") or {}
        said = f' Google says: "{why["message"]}"' if why.get("message") else ""
        raise LaunchError(
            f"The queued resource {name} is {state or 'not ACTIVE'}, not a slice.{said}", hint
        )
    nodes = (resource.get("tpu") or {}).get("nodeSpec", [])
    names = [str(node.get("nodeId", "")) for node in nodes if node.get("nodeId")]
    if len(names) != 1:
        several = f"{len(names)} slices ({', '.join(names)})" if names else "no named slice"
        raise LaunchError(
            f"The queued resource {name} is {several}. A cluster runs on one slice.",
            f"Name it: --tpu {names[0] if names else 'NAME'}",
        )
    return names[0]


_CASES = (
    (
        r"not currently have an active account|auth login|[Rr]eauthentication|refreshing .* tokens",
        "gcloud is not logged in.",
        "Log in in a terminal: gcloud auth login",
    ),
    (
        r"SERVICE_DISABLED|has not been used in project|is disabled",
        "The project has no Cloud TPU API.",
        "Enable it: gcloud services enable tpu.googleapis.com",
    ),
    (
        r"PERMISSION_DENIED|does not have permission|HttpError 403|forbidden",
        "You are not allowed to see the TPU slice {name}.",
        "Is it in another project (--project)? You need the role roles/tpu.viewer there.",
    ),
    (
        r"attribute \[project\]|property \[(core/)?project\]",
        "gcloud has no project set.",
        "Name it: --project NAME   or: gcloud config set project NAME",
    ),
    (
        r"attribute \[zone\]|property \[(compute/)?zone\]|[Uu]nderspecified|argument --zone",
        "gcloud does not know in which zone {name} is.",
        "Name it: --zone us-central2-b   or: gcloud config set compute/zone ZONE",
    ),
    (
        r"NOT_FOUND|was not found|[Ll]ocation .* is not found|HttpError 404",
        "NOT_FOUND: there is no TPU slice and no queued resource {name} in this zone.",
        "Is it in another zone? gcloud compute tpus tpu-vm list --zone=- lists all of the project.",
    ),
    (
        r"not currently be connected|cannot be currently|terminal state",
        "The TPU slice {name} can't be logged in to.",
        "gcloud compute tpus tpu-vm describe {name} shows its state.",
    ),
    (
        r"not present in the SSH agent",
        "gcloud's key has a passphrase, and no ssh agent holds the key.",
        "In the terminal that starts Jupyter: ssh-add ~/.ssh/google_compute_engine",
    ),
    (
        r"invalid choice|unrecognized arguments|Invalid choice",
        "This gcloud is too old, or too new: it does not know an option.",
        "gcloud components update   or name the slice's hosts: --hosts t0,t1",
    ),
    (
        r"[Uu]nable to find the server|Failed to establish|ConnectionError|timed out|resolve",
        "gcloud can't reach Google Cloud.",
        "Is this machine's network up? Try it in a terminal.",
    ),
)


def explain_gcloud(stderr: str, name: str, argv: Sequence[str]) -> Reason:
    """Why gcloud failed. Pure."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line]
    said = re.sub(r"^ERROR: \(gcloud[\w.-]*\) ", "", errors[0] if errors else last_line(lines))
    for pattern, message, hint in _CASES:
        if re.search(pattern, stderr):
            told = message.format(name=name)
            return Reason(f'{told} gcloud says: "{said.strip()}"', hint.format(name=name))
    return Reason(f'gcloud failed: "{said.strip()}"', f"Try: {shlex.join(argv)}")
