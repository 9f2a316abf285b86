"""How ipyparallel's controller is started: what stands on its command line, behind its folder."""

import zmq

# A heartbeat each second tells ipyparallel's clients of new engines soon (later there are fewer,
# ``engine.controller.RestingHeartMonitor``); a minute of misses keeps engines that are busy in C
# code. Deaths are told by the fork server, not by heartbeats.
# Schedulers on threads: cells don't pass through them, and eight processes less come up sooner.
# One broadcast scheduler, not a tree: see ``engine.controller.SingleScheduler``.
CONTROLLER_ARGS = (
    "--usethreads",
    "--IPController.broadcast_scheduler_depth=0",
    "--HeartMonitor.period=1000",
    "--HeartMonitor.max_heartmonitor_misses=60",
    "--log-level=40",
    # ipyparallel signs its messages and sends them in clear over TCP: without this any user of this
    # machine can read what cells run through it print. It costs a start 0.05 s.
    *(("--IPController.enable_curve=True",) if zmq.has("curve") else ()),
)
