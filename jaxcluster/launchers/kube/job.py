"""The Job of one launch, from its creation to its end, as the process beside it sees it."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcluster.launchers.base import Reason, announcements
from jaxcluster.launchers.kube import reasons
from jaxcluster.launchers.kube.launcher import LEFT, SEEN, STARTED_AT, TOLD, WAITING
from jaxcluster.launchers.kube.manifests import LAUNCH, restrict
from jaxcluster.launchers.kube.reasons import Refused, Trouble, Unreachable
from jaxcluster.launchers.kube.template import CONTAINER

if TYPE_CHECKING:
    from jaxcluster.launchers.kube.api import Api
    from jaxcluster.launchers.kube.forward import Forwards

MADE, REMOVED, TAKEN, FENCE = "made.json", "removed", "taken-{}", "fence-{}"
FIRST_LOOK_S = 0.1  # while a pod runs whose agent has not announced itself
PENDING_LOOK_S = 0.5  # while pods do not run; the watch is faster
LOOK_S = 1.5
LIST_S = 10.0  # between two lists of pods that all run, where a watch tells of changes
JOB_S = 1.0  # between two looks at the Job
EVENTS_S = 3.0  # between two looks at what is said of what waits
READERS = 16  # of logs, at once
TRIES_S = (0.5, 1.0, 2.0, 4.0)  # before another try of what the API server may do later
GONE_S = 8.0  # for the pods to go, after the Job
MISSED = 3  # looks in a row at which a Job is not there before it is believed


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def tell(reason: Reason) -> None:
    print(json.dumps({TOLD: [reason.message, reason.hint]}), file=sys.stderr, flush=True)


@dataclass
class Place:
    """One index of the Job.

    Attributes:
      uid: of the pod whose agent has been told; empty while there is none.
      host: that agent's name for itself.
    """

    uid: str = ""
    host: str = ""


class Launch:
    """One Job, from its creation to its end."""

    def __init__(self, folder: Path, api: Api) -> None:
        self.folder, self.api = folder, api
        self.task = read_json(folder / "task.json")
        self.name = str(self.task["name"])
        self.uid = ""
        self.may_be_there = False  # the Job, so that it is to be removed
        self.places = [Place() for _ in range(self.task["pods"])]
        self.first = True  # until every agent has been told
        self.missed = 0
        self.job: Mapping[str, Any] | None = None
        self.looked_at_events = self.looked_at_job = self.listed = 0.0
        self.changed = True  # since the last list, as the watch has it
        self.watches = False
        self.said = ""
        self.ended: set[str] = set()  # uids of pods that we have ended
        self.forwards: Forwards | None = None
        self.last: dict[str, Mapping[str, Any]] = {}  # pods by uid, as the watch has seen them last

    # -- making

    def make(self, wait: Callable[[float], bool]) -> None:
        """Make the Job, and the Service that goes with it.

        Args:
          wait: for so many seconds; whether it is over.

        Raises:
          Trouble: why not.
        """
        job, service = read_json(self.folder / "job.json"), read_json(self.folder / "service.json")
        if self.task["forward"]:
            from jaxcluster.launchers.kube.forward import Forwards

            self.forwards = Forwards(self.api, self.folder)
        if self.task["inside"]:
            if (owner := self.api.own_pod()) is not None:
                job["metadata"]["ownerReferences"] = [owner]
            else:
                job["spec"].setdefault("activeDeadlineSeconds", self.task["deadline_s"])
        if self.api.security_level() == "restricted":  # other pods would not be made
            restrict(job["spec"]["template"]["spec"])
        self.image = str(self._container(job).get("image", ""))
        self.may_be_there = True
        self._write(MADE, json.dumps({"uid": ""}))
        made = self._create("jobs", job, wait)
        if made is None:
            return
        self.uid = str(made["metadata"]["uid"])
        self._write(MADE, json.dumps({"uid": self.uid}))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": self.uid}
        service["metadata"]["ownerReferences"] = [owner]
        self._create("services", service, wait)
        if (deadline_s := job["spec"].get("activeDeadlineSeconds")) is not None:
            self._write(STARTED_AT, str(time.time() + deadline_s))

    def _create(
        self, plural: str, body: Mapping[str, Any], wait: Callable[[float], bool]
    ) -> Mapping[str, Any] | None:
        """What was made, at the first try or a later one; None where it is over before.

        Raises:
          Trouble: the API server refuses it permanently.
        """
        tries = 0
        while True:
            try:
                return self.api.create(plural, body)
            except Unreachable as error:
                if not (tries or error.was_asked):
                    self._is_not_there()
                raise
            except Refused as error:
                # An earlier try may have made it, with an error for an answer.
                found = self.api.get(plural, self.name) if error.status == 409 and tries else None
                if found is not None and self._is_ours(found):
                    return found
                if not (tries or error.may_pass):
                    self._is_not_there()
                if not error.may_pass or tries == len(TRIES_S):
                    raise
                self._say(error.reason.message)
                tries += 1
            if wait(TRIES_S[tries - 1]):
                return None

    def _is_not_there(self) -> None:
        """What was asked for first was not made: nothing is to be removed."""
        if not self.uid:
            self.may_be_there = False
            (self.folder / MADE).unlink(missing_ok=True)

    def _is_ours(self, one: Mapping[str, Any]) -> bool:
        return (one["metadata"].get("labels") or {}).get(LAUNCH) == self.name

    @staticmethod
    def _container(job: Mapping[str, Any]) -> Mapping[str, Any]:
        containers = job["spec"]["template"]["spec"]["containers"]
        return next((one for one in containers if one["name"] == CONTAINER), containers[0])

    def _write(self, name: str, text: str) -> None:
        draft = self.folder / f"{name}.part"
        with contextlib.suppress(OSError):  # the folder goes with the notebook
            draft.write_text(text)
            draft.replace(self.folder / name)

    # -- looking

    def watch(self, stir: Callable[[], None]) -> None:
        """On a thread: note every pod's last state, and have it looked at.

        A list of pods alone does not say why one that is not in it any more has ended.
        """

        def seen(pod: Mapping[str, Any]) -> None:
            self.last[reasons.uid(pod)] = pod
            self.watches = self.changed = True
            stir()

        while True:
            began = time.monotonic()
            try:
                self.api.watch_pods(f"{LAUNCH}={self.name}", seen)
            except (Refused, Unreachable) as trouble:
                self.watches = False
                if isinstance(trouble, Refused) and trouble.status == 403:
                    return  # without the right to it ends are told with less of a reason
            # Something between here and there may end each watch at once.
            time.sleep(max(0.0, began + LOOK_S - time.monotonic()))

    def look(self) -> float:
        """Tell what has changed; returns in how many seconds to look again.

        Raises:
          Trouble: the Job is over, or its agents can't ever come.
        """
        began = time.monotonic()
        if began < self.listed + LIST_S and self._nothing_has_changed():
            return LOOK_S
        self.changed = False
        try:
            pods = self.api.pods(f"{LAUNCH}={self.name}")
            self._look_at_job(pods)
            self._look_at_pods(pods)
        except (Unreachable, Refused) as trouble:
            self.changed = True
            if self.first and isinstance(trouble, Refused) and not trouble.may_pass:
                raise
            self._say(trouble.reason.message)  # it may pass: the agents need no API server
            return LOOK_S
        self.listed = time.monotonic()
        if all(place.uid for place in self.places):
            return LOOK_S
        running = sum(reasons.runs(pod) for pod in pods)
        is_soon = running > sum(bool(place.uid) for place in self.places)
        # Not more than half of the time, however many they are.
        return max(FIRST_LOOK_S if is_soon else PENDING_LOOK_S, self.listed - began)

    def _nothing_has_changed(self) -> bool:
        """Whether all agents are there, and the watch and the notebook have told of nothing."""
        are_there = all(place.uid for place in self.places)
        asked = any((self.folder / FENCE.format(n)).exists() for n in range(len(self.places)))
        return are_there and self.watches and not self.changed and not asked

    def _look_at_pods(self, pods: list[Mapping[str, Any]]) -> None:
        by_index: dict[int, list[Mapping[str, Any]]] = {}
        for pod in pods:
            if (number := reasons.index(pod)) is not None and number < len(self.places):
                by_index.setdefault(number, []).append(pod)
        for number, place in enumerate(self.places):
            self._look_at(number, place, by_index.get(number, []))
        waiting = [
            (number, pod)
            for number, place in enumerate(self.places)
            for pod in by_index.get(number, ())
            if not place.uid and reasons.runs(pod)
        ]
        self._look_for_agents(waiting)
        self.first = self.first and not all(place.uid for place in self.places)
        self._say_what_waits(by_index)

    def _look_at_job(self, pods: list[Mapping[str, Any]]) -> None:
        """Its end, which is looked for where not all pods run."""
        if sum(reasons.runs(pod) for pod in pods) >= len(self.places):
            self.missed = 0
            return
        if time.monotonic() < self.looked_at_job + JOB_S:
            return
        self.job = self.api.get("jobs", self.name)
        self.looked_at_job = time.monotonic()
        if self.job is None or reasons.uid(self.job) != self.uid:
            self.missed += 1
            if self.missed >= MISSED:
                raise Trouble(Reason(f"The Job {self.name} was deleted."))
            return
        self.missed = 0
        if (end := reasons.job_end(self.job)) is not None:
            raise Trouble(end)

    def _look_at(self, number: int, place: Place, pods: list[Mapping[str, Any]]) -> None:
        """One index: has its agent's pod ended, has another one come?"""
        if place.uid:
            mine = next((pod for pod in pods if reasons.uid(pod) == place.uid), None)
            if mine is not None and not reasons.has_ended(mine):
                self._fence_if_asked(number, reasons.name(mine), place.uid)
                return
            mine = mine or self.last.get(place.uid)
            self._tell_end(number, place, reasons.why_ended(mine), mine)
        for pod in pods:
            if reasons.runs(pod):
                continue
            if self.first:
                self._refuse_dead(pod)
            if reasons.lingers(pod) and reasons.uid(pod) not in self.ended:
                self.ended.add(reasons.uid(pod))
                self._end(reasons.name(pod), reasons.uid(pod))

    def _end(self, pod: str, uid: str) -> None:
        """End one whose agent has failed: its other containers keep the Job from another one."""
        with contextlib.suppress(Trouble):  # without the right to it, it is as it would be
            self.api.delete("pods", pod, uid)

    def _fence_if_asked(self, number: int, pod: str, uid: str) -> None:
        """End a pod whose agent the notebook has given up: two of one index would share a GPU."""
        asked = self.folder / FENCE.format(number)
        with contextlib.suppress(OSError):
            is_it = asked.read_text() == uid
            asked.unlink()
            if is_it:
                self.api.delete("pods", pod, uid)

    def _refuse_dead(self, pod: Mapping[str, Any]) -> None:
        """While a start waits, what can't become an agent ends the start."""
        if (reason := reasons.never_runs(pod, self.image)) is not None:
            raise Trouble(reason)
        # Also one that has ended well, or has other containers that go on: it has no agent.
        if reasons.has_no_agent_left(pod) and not _was_disrupted(pod):
            log = self.api.log(reasons.name(pod), CONTAINER)
            for line in log:  # an agent that can't work has said why
                for said in announcements(line)[0]:
                    if "error" in said:
                        print(json.dumps(said), flush=True)
            raise Trouble(reasons.why_failed(pod, log, self.image, str(self.task["python"])))

    def _look_for_agents(self, waiting: list[tuple[int, Mapping[str, Any]]]) -> None:
        """A pod that runs has an agent as soon as its log has the agent's line."""
        waiting.sort(key=lambda one: str(one[1]["metadata"].get("creationTimestamp", "")))
        for (number, pod), log in zip(waiting, self._logs(pod for _, pod in waiting), strict=True):
            said = [said for line in log for said in announcements(line)[0] if "key" in said]
            if said and not (place := self.places[number]).uid:
                self._tell_agent(number, place, pod, {**said[0], "number": number})

    def _logs(self, pods: Iterable[Mapping[str, Any]]) -> Iterable[list[str]]:
        """Those of all pods, in order: of hundreds, one after the other would take seconds."""
        names = [reasons.name(pod) for pod in pods]
        if len(names) < 2:
            return [self.api.log(name, CONTAINER) for name in names]
        with ThreadPoolExecutor(min(READERS, len(names))) as readers:
            return list(readers.map(lambda name: self.api.log(name, CONTAINER), names))

    def _tell_agent(
        self, number: int, place: Place, pod: Mapping[str, Any], line: dict[str, Any]
    ) -> None:
        if self.forwards is not None:
            line["via"] = self.forwards.open(number, reasons.name(pod), str(line["endpoint"]))
        place.uid, place.host = reasons.uid(pod), str(line["host"])
        self._write(SEEN.format(number), json.dumps({"uid": place.uid, "line": line}))
        if self.first:
            self._write(TAKEN.format(number), place.uid)
            print(json.dumps(line), flush=True)

    def _tell_end(self, number: int, place: Place, why: str, pod: Mapping[str, Any] | None) -> None:
        if self.forwards is not None:
            self.forwards.close(number)
        who = f"The pod {reasons.name(pod)}" if pod is not None else "Its pod"
        node = (pod or {}).get("spec", {}).get("nodeName", "")
        where = f" on the node {node}" if node else ""
        line = {
            "jaxcluster-agent-ended": why,
            "host": place.host,
            "number": number,
            "message": f"{who}{where} has ended: {why}",
        }
        place.uid = place.host = ""
        print(json.dumps(line), flush=True)

    def _say_what_waits(self, by_index: Mapping[int, list[Mapping[str, Any]]]) -> None:
        """Write down, for whoever asks, what is waited for.

        Raises:
          Trouble: the start waits for pods that can't ever be made.
        """
        waiting = [number for number, place in enumerate(self.places) if not place.uid]
        if not waiting:
            return self._say("")
        if time.monotonic() < self.looked_at_events + EVENTS_S:
            return
        self.looked_at_events = time.monotonic()
        there = [p for n in waiting for p in by_index.get(n, []) if not reasons.has_ended(p)]
        pending = [pod for pod in there if not reasons.runs(pod)]
        if pending:
            events = self.api.events(reasons.uid(pending[0]))
            if self.first and (reason := reasons.never_pulls(events, self.image)) is not None:
                raise Trouble(reason)
            why = reasons.why_pending(pending[0], events)
            return self._say(f"{len(pending)} of {len(self.places)} pods wait: {why}")
        if there:
            return self._say(f"the agent of the pod {reasons.name(there[0])} has not started yet")
        job = self.job or self.api.get("jobs", self.name)
        why = reasons.why_no_pods(job, self.api.events(self.uid)) if job is not None else ""
        if self.first and (reason := reasons.never_made(why)) is not None:
            raise Trouble(reason)
        self._say(f"the Job has no pods yet: {why}" if why else "the Job makes its pods")

    def _say(self, text: str) -> None:
        if text != self.said:
            self.said = text
            self._write(WAITING, text)

    # -- removing

    def remove(self) -> bool:
        """Delete the Job, with all that is its own: pods and Service go with it.

        The folder may be gone by now, with all files in it. Returns whether it is gone; else says
        what to type.
        """
        if self.forwards is not None:
            self.forwards.close_all()
        if not self.may_be_there:
            return True
        try:
            uid = self.uid or self._uid_of_ours()
            if uid:
                self._delete(uid)
                self._wait_until_gone()
            self._write(REMOVED, "")
        except Trouble as trouble:
            told = f"The Job {self.name} {LEFT}. {trouble.reason.message}"
            hint = f"kubectl -n {self.api.namespace} delete job {self.name}"
            tell(Reason(told, hint))
            return False
        return True

    def _delete(self, uid: str) -> None:
        """Delete the Job; what a busy API server refuses is tried again.

        Raises:
          Trouble: it can't be deleted, or the API server can't be reached.
        """
        for wait_s in (*TRIES_S, None):
            try:
                return self.api.delete("jobs", self.name, uid)
            except Refused as error:
                if not error.may_pass or wait_s is None:
                    raise
                time.sleep(wait_s)

    def _uid_of_ours(self) -> str:
        """It may have been made without our hearing of it; its name is this launch's alone."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            if uid := str(read_json(self.folder / MADE)["uid"]):
                return uid
        job = self.api.get("jobs", self.name)
        return reasons.uid(job) if job is not None and self._is_ours(job) else ""

    def _wait_until_gone(self) -> None:
        """For the pods: who starts again may need their devices, or their part of a quota."""
        until = time.monotonic() + GONE_S
        with contextlib.suppress(Trouble):  # the Job is deleted, whatever becomes of this look
            while time.monotonic() < until and self.api.pods(f"{LAUNCH}={self.name}"):
                time.sleep(FIRST_LOOK_S)


def _was_disrupted(pod: Mapping[str, Any]) -> bool:
    """Whether the cluster ended it, so that the Job's next one may well run."""
    evicted = pod.get("status", {}).get("reason") in ("Evicted", "NodeLost", "Preempting")
    return evicted or reasons.condition(pod, "DisruptionTarget").get("status") == "True"
