"""What the sidebar of JupyterLab costs a page that shows 256 hosts of one rank each.

    python benchmarks/bench_page.py [--hosts 256]

A real JupyterLab in a headless Chromium, with the extension as the build has left it, and a real
kernel; the hosts are played (``tests/manyhosts``). Cells run on all ranks while the sidebar is
open. Told are the milliseconds that the page's main thread is busy for one change of state, drawing
included, and its longest tasks: a page stutters from 50 ms on. Needs a Chromium (``CHROMIUM``, or
in PATH), playwright, and the extension built (``npm run build`` in labextension/).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from labpage import CURRENT, LabPage
from labserver import serving

START = f"""\
%load_ext jaxcluster
import sys
sys.path.insert(0, {sys.path[0]!r})
import manyhosts, jaxcluster
hosts = manyhosts.ManyHosts({{hosts}}).__enter__()
cluster = jaxcluster.start(timeout_s=300, **hosts.options)"""

# Changes are the messages of the kernel that came for the sidebar; long tasks are told by Chromium.
COUNT = f"""() => {{
  window.changes = 0;
  window.tasks = [];
  const kernel = {CURRENT}.sessionContext.session.kernel;
  kernel.iopubMessage.connect((_, m) => {{
    if (m.header.msg_type === 'comm_msg') window.changes += 1;
  }});
  new PerformanceObserver(all => window.tasks.push(...all.getEntries().map(t => t.duration)))
    .observe({{ type: 'longtask' }});
}}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=256, help="%(default)s")
    parser.add_argument("--cells", type=int, default=20, help="%(default)s")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        serving(Path(folder)) as lab,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            context = browser.new_context(viewport={"width": 1500, "height": 950})
            measure(LabPage(context.new_page(), lab), context, args)
        finally:
            browser.close()
            for session in lab.api("sessions"):
                lab.api(f"sessions/{session['id']}", "DELETE")


def measure(page: LabPage, context: Any, args: argparse.Namespace) -> None:
    page.open("many.ipynb", START.format(hosts=args.hosts), "%%spmd\npass", "hosts.__exit__()")
    cdp = context.new_cdp_session(page.page)
    # Processors' time: the played hosts share this machine's cores.
    cdp.send("Performance.setTimeDomain", {"timeDomain": "threadTicks"})
    cdp.send("Performance.enable")

    def busy_ms() -> float:
        metrics = {
            one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]
        }
        return 1e3 * float(metrics["TaskDuration"])

    page.run(0)
    print(page.finish(0, 300))
    page.command("jaxcluster:show-clusters")
    page.until_state(f"s.ranks.length === {args.hosts}", "all ranks are shown")
    page.do(1)
    rows = []
    for shown in (True, False):
        if not shown:
            page.command("application:toggle-right-area")
            page.page.wait_for_timeout(1000)
        page.page.evaluate(COUNT)
        spent = []
        for _ in range(args.cells):
            before, changes = busy_ms(), page.page.evaluate("() => window.changes")
            page.do(1)
            page.page.wait_for_timeout(500)
            came = page.page.evaluate("() => window.changes") - changes
            spent.append((busy_ms() - before) / max(1, came))
        tasks = page.page.evaluate("() => window.tasks")
        rows.append(
            [
                "sidebar open" if shown else "sidebar closed",
                f"{statistics.median(spent):.1f} ms",
                f"{max(tasks, default=0):.0f} ms",
                str(len(tasks)),
            ]
        )
    table([f"{args.hosts} ranks", "busy for a change", "longest task", "tasks of 50 ms"], rows)


if __name__ == "__main__":
    main()
