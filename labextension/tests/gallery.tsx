/** Every widget on a plain page, with what a kernel would have said. tests/browser/test_widgets.py looks at it. */

import * as React from 'react';
import { flushSync } from 'react-dom';
import { createRoot, type Root } from 'react-dom/client';
import golden from '../../tests/golden/panel.json';
import shards from '../../tests/golden/shards-array.json';
import type { ICell, ICellRank, ILaunch, IProfile, IRank, IReport, ISeries, IState, ITimeline, IUndo, IVariable, RankStatus } from '../src/protocol';
import { english as trans } from '../src/alone/english';
import { Badges, OutputHead } from '../src/widgets/badges';
import { Ticker } from '../src/widgets/clock';
import { Inspector, type Shown } from '../src/widgets/inspector';
import { ReportView } from '../src/widgets/report';
import { Sidebar } from '../src/widgets/sidebar';
import { StartFields } from '../src/widgets/startFields';
import { NO_OPTIONS } from '../src/widgets/startOptions';
import { Journal } from '../src/widgets/journal';
import { Logs } from '../src/widgets/logs';
import type { ISamples } from '../src/widgets/resources';
import { SpmdSwitch, StateChip, StatusItem } from '../src/widgets/toolbar';

const profiles: IProfile[] = [
  { name: 'team', place: '~/.config/jaxcluster/jaxcluster.toml line 3', is_default: false, options: [['num_processes', '8']], problem: '' },
  { name: 'broken', place: '/etc/jaxcluster/jaxcluster.toml line 9', is_default: false, options: [], problem: 'there is no launcher ssg' }
];
const state = golden.state as unknown as IState;
const cell = golden.cell as unknown as ICell;
const clockOffset = state.now - Date.now();
const asked: unknown[] = [];
const ticker = new Ticker();
const execute = (command: string, args?: object) => asked.push(args ? [command, args] : [command]);

/** A state of many ranks, on hosts of eight if nothing else is said. */
function many(n: number, perHost = 8): IState {
  const ranks = Array.from({ length: n }, (_, rank): IRank => {
    const odd = rank === 17 ? 'dead' : rank % 8 === 3 ? 'waiting' : 'running';
    return {
      ...state.ranks[0],
      rank,
      status: odd,
      host: `host-${String(Math.floor(rank / perHost)).padStart(2, '0')}`,
      devices: [`cpu:${rank}`],
      note: odd === 'dead' ? 'killed by SIGKILL' : ''
    };
  });
  return { ...state, ranks, clusters: [{ ...state.clusters[0], num_processes: n }] };
}

/** The same ranks on one host, of a long name. */
const one = (shown: IState): IState => ({
  ...shown,
  ranks: shown.ranks.map(rank => ({ ...rank, host: 'a-node-with-a-long-name-0017.cluster.example' }))
});

/** What the ranks use, as if it had come over three minutes. */
function samplesOf(n: number, gpus = false): ISamples & { push: () => void } {
  const listeners = new Set<() => void>();
  let all: ISeries[] = [];
  let count = 0;
  const push = () => {
    count += 1;
    all = Array.from({ length: n }, (_, rank): ISeries => {
      const at = Array.from({ length: 60 }, (_, i) => i + count);
      return {
        rank,
        cpu: at.map(i => (i < 2 + count ? null : Math.round(50 + 45 * Math.sin((i + rank) / 7)))),
        rss: at.map(i => (400 + 2 * i) * 2 ** 20),
        gpu: at.map(() => (gpus ? 80 : null)),
        gpu_used: at.map(() => (gpus ? 60 * 2 ** 30 : 0)),
        gpu_total: gpus ? 80 * 2 ** 30 : 0
      };
    });
    listeners.forEach(listener => listener());
  };
  push();
  return {
    get: rank => all[rank],
    all: () => all,
    listen: listener => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    push
  };
}
const noSamples = samplesOf(0);

function sidebar(shown: IState | null, notebook: string | null = 'train.ipynb', samples: ISamples = noSamples): JSX.Element {
  const server = [{ id: 'x', name: 'left-behind', num_processes: 8, running: true }];
  const openMenu = () => execute('menu');
  return (
    <Sidebar {...{ notebook, state: shown, clockOffset, server, ticker, trans, execute, samples, openMenu }} number={4} onStart={number => execute('start', { number })} hasForm load={() => execute('load')} />
  );
}

const run = (ranks: Partial<ICellRank>[], ended: number | null = state.now): ICell => ({
  ...cell,
  ended,
  ranks: ranks.map((one, rank) => ({ rank, status: 'done', seconds: 1.2, ...one }))
});
const badges = (one: ICell, shown: number | null = null, undo: IUndo | null = null) => (
  <Badges
    {...{ cell: one, shown, clockOffset, trans, undo }}
    onShow={rank => execute('show', { rank })}
    onUndo={() => execute('undo')}
  />
);
const undo: IUndo = { seq: cell.seq, cell_id: cell.cell_id, cell: cell.number, is_done: false, refused: '' };
const failed = run([{ status: 'failed' }, {}]);

const variables: IVariable[] = [
  ['x', 'array', [8, 8], 'int32', "P('i', 'j')", 256, 32],
  ['params', 'dict of 12 arrays', null, '', '12 shardings', 4194304, 524288],
  ['loss', 'array', [], 'float32', 'P()', 4, 4],
  ['batch', 'array', [1024, 784], 'float32', "P('i', None)", 3211264, 802816]
].map(([name, type, shape, dtype, sharding, nbytes, nbytes_per_device]) => ({
  ...({ name, type, shape, dtype, sharding, nbytes, nbytes_per_device, spans: true } as IVariable)
}));

/** Names, shapes and shardings as a large model has them. */
const longVariables: IVariable[] = [
  ...variables,
  ...[
    ['decoder_layers_attention_kernel_ema', [4096, 32, 128], 'bfloat16', "P(('data', 'fsdp'), None, 'model')", 33554432, 1048576],
    ['optimizer_state', null, '', '3 shardings', 1099511627776, 17179869184],
    ['quantized_embedding', [262144, 16384], 'float8_e4m3fnuz', "P(('replica', 'data', 'fsdp'), ('model', 'sequence'))", 4294967296, 67108864]
  ].map(([name, shape, dtype, sharding, nbytes, nbytes_per_device]) => ({
    ...({ name, type: shape ? 'array' : 'dict of 1,204 arrays', shape, dtype, sharding, nbytes, nbytes_per_device, spans: true } as IVariable)
  }))
];

function FakeInspector({ variables }: { variables: IVariable[] }): JSX.Element {
  const [shown, setShown] = React.useState<Shown | null>({ kind: 'variable', name: 'x' });
  return (
    <Inspector
      variables={variables}
      failure=""
      busy={false}
      shown={shown}
      document={shown && shards}
      documentFailure=""
      ask={null}
      trans={trans}
      onShow={next => {
        execute('look', next);
        setShown(next);
      }}
      onRefresh={() => execute('refresh')}
    />
  );
}

const report = (part: Partial<IReport>) => (
  <ReportView report={{ ...state.report!, ...part }} trans={trans} execute={execute} has={() => true} onPlace={(cell, line) => execute('place', { cell, line })} />
);
const died: Partial<IReport> = {
  kind: 'dead',
  title: 'Rank 2 died',
  culprits: [2],
  waiting: [],
  lines: [
    'Rank 2 died in cell [7]: killed by SIGKILL.',
    'Ranks 0, 1, 3 were in time.sleep at cell [7] line 4.'
  ],
  places: [
    { cell: 7, line: 3, ranks: [2], what: 'died' },
    { cell: 7, line: 4, ranks: [0, 1, 3], what: 'was' }
  ],
  recovered: 'New processes after 0.5 s, rank 2 replaced: 3 variables kept.'
};
/** Sixteen launches of which the last three differ, on four lanes. */
const long: ITimeline = {
  processes: [0, 1, 2, 3],
  first: 31,
  lanes: [[0], [1], [2], [3]].map(([rank]) => ({
    ranks: [rank],
    launches: Array.from({ length: 12 }, (_, at): ILaunch | null =>
      rank === 3 && at > 9
        ? null
        : { name: at % 3 ? 'jit(train_step)' : 'jit(_reduce_sum)', program: rank === 1 && at > 8 ? 7 : at % 3, cell: 7, line: at + 2, within: '' }
    ),
    under_way: false
  })),
  hidden: [],
  odd: [1]
};
/** Sixty-four ranks in lockstep, of which two are behind, in a script. */
const wide: ITimeline = {
  processes: Array.from({ length: 64 }, (_, rank) => rank),
  first: 1001,
  lanes: [Array.from({ length: 62 }, (_, rank) => rank), [62, 63]].map(ranks => ({
    ranks,
    launches: Array.from({ length: 40 }, (_, at): ILaunch | null =>
      ranks[0] && at > 37
        ? null
        : { name: `jit(program_${at % 30})`, program: at % 30, cell: 3, line: 1, within: `train.py line ${at}: step()` }
    ),
    under_way: !!ranks[0]
  })),
  hidden: []
};
const journal = (timelines: ITimeline[]) => (
  <Journal
    timelines={timelines}
    trans={trans}
    has={cell => cell === 7}
    onPlace={(cell, line) => execute('place', { cell, line })}
  />
);
const noRanks = golden.state_without_cluster as unknown as IState;
const idle = (n: number): IState => ({
  ...state,
  spmd: false,
  ranks: state.ranks.slice(0, n).map(rank => ({ ...rank, status: 'idle', cell: null, line: null, since: null, note: '' }))
});
const bar = (shown: IState | null) => (
  <div style={{ display: 'flex', gap: 4 }}>
    <SpmdSwitch state={shown} trans={trans} onClick={() => execute('click', { i: 0 })} />
    <StateChip
      state={shown}
      trans={trans}
      number={4}
      onStart={number => execute('start', { number })}
      onClick={() => execute('click', { i: 1 })}
    />
    <StatusItem state={shown} trans={trans} onClick={() => execute('click', { i: 2 })} />
  </div>
);

const widgets: { [name: string]: () => JSX.Element } = {
  'sidebar': () => sidebar(state),
  'sidebar-used': () => sidebar({ ...idle(3), spmd: true }, 'train.ipynb', samplesOf(3, true)),
  'sidebar-idle': () => sidebar({ ...idle(2), report: null }, 'train.ipynb', samplesOf(2)),
  'sidebar-diverged': () => sidebar({ ...idle(2), ranks: idle(2).ranks.map((rank, i) => ({ ...rank, status: i ? 'diverged' : 'idle' })) }),
  'sidebar-16': () => sidebar(many(16), 'train.ipynb', samplesOf(16)),
  'sidebar-64': () => sidebar(one(many(64)), 'train.ipynb', samplesOf(64)),
  'sidebar-256': () => sidebar(many(256)),
  'sidebar-hosts': () => sidebar(many(32, 1)),
  'sidebar-no-notebook': () => sidebar(null, null),
  'sidebar-not-loaded': () => sidebar(null),
  'sidebar-no-cluster': () => sidebar(noRanks),
  'sidebar-starting': () => sidebar(golden.starting as unknown as IState),
  'sidebar-failed': () => sidebar(golden.failed as unknown as IState),
  'sidebar-hang': () => sidebar({ ...state, strict: true, report: { ...state.report!, open: true } }),
  'toolbar': () => (
    <>
      {bar(state)}
      {bar(idle(4))}
      {bar({ ...noRanks, progress: 'starting: engines 3/4' })}
      {bar(noRanks)}
      {bar(null)}
    </>
  ),
  'badges': () => (
    <>
      {badges(run([{}, { seconds: 1.21 }, { seconds: 2.4 }, { seconds: 1.19 }]))}
      {badges(run([{ status: 'waiting', seconds: null }, {}, { status: 'running', seconds: null }, { status: 'dead', seconds: null }], null))}
      {badges(run([{}, { status: 'failed' }, { status: 'interrupted' }, {}]), 1)}
      {badges(run(Array.from({ length: 16 }, () => ({}))))}
      {badges(run(Array.from({ length: 256 }, (_, rank) => (rank % 25 === 3 ? { status: 'failed', seconds: 0.3 } : {}))))}
      {badges(failed, null, undo)}
      {badges(failed, null, { ...undo, refused: 'Another cell has run since.' })}
      {badges(failed, null, { ...undo, is_done: true, refused: 'It is undone.' })}
      <OutputHead cell={run([{}, { status: 'failed' }])} rank={1} trans={trans} onShow={rank => execute('show', { rank })} onClose={() => execute('close')} />
    </>
  ),
  'report': () => report({}),
  'report-open': () => report({ open: true, recovered: '', waiting: [0, 2, 3] }),
  'report-death': () => report(died),
  'report-timeline': () => report({ timelines: [long, ...state.report!.timelines] }),
  'report-none': () => <ReportView report={null} trans={trans} execute={execute} has={() => false} onPlace={() => undefined} />,
  'journal': () => journal(structuredClone([wide, long])),
  'journal-none': () => journal([]),
  'logs': () => (
    <Logs
      rank={null}
      ranks={[0, 1]}
      text={'[0] INFO: loading\n[0] WARNING: slow step\n[1] INFO: loading\n[1] ERROR: out of memory'}
      failure=""
      follow
      trans={trans}
      onRank={rank => execute('rank', { rank })}
      onFollow={follow => execute('follow', { follow })}
    />
  ),
  'inspector': () => <FakeInspector variables={variables} />,
  'inspector-long': () => <FakeInspector variables={longVariables} />,
  'form-pods': () => (
    <StartFields
      initial={{ ...NO_OPTIONS, launcher: 'kubernetes', pods: '2', gpus: 'eight' }}
      defaults={NO_OPTIONS}
      profiles={[]}
      trans={trans}
      onChange={options => execute('options', options)}
    />
  ),
  'form': () => (
    <StartFields
      initial={{ ...NO_OPTIONS, numProcesses: '4', env: 'XLA_FLAGS=--a b' }}
      defaults={NO_OPTIONS}
      profiles={profiles}
      trans={trans}
      onChange={options => execute('options', options)}
    />
  )
};

let root: Root | null = null;

/** For the tests: what was clicked, and ways to show and to change a widget. */
(window as any).gallery = {
  asked,
  names: Object.keys(widgets),
  show(name: string): void {
    root?.unmount();
    root = createRoot(document.getElementById('view')!);
    asked.length = 0;
    flushSync(() => root!.render(widgets[name]()));
  },
  /** Show the same with what was said anew. */
  again(name: string): void {
    flushSync(() => root!.render(widgets[name]()));
  },
  /** How long it takes to draw a sidebar of n ranks, to unfold all hosts, and to draw one rank again; in ms. */
  async time(n: number): Promise<{ [what: string]: number }> {
    const view = document.getElementById('view')!;
    root?.unmount();
    root = createRoot(view);
    const shown = many(n);
    const clock = (work: () => void) => {
      const began = performance.now();
      flushSync(work);
      document.body.getBoundingClientRect();
      return performance.now() - began;
    };
    const first = clock(() => root!.render(sidebar(shown)));
    const folded = this.change(shown, clock, 'interrupted');
    const began = performance.now();
    view.querySelectorAll('details').forEach(host => (host.open = true));
    while (view.querySelectorAll('.jxl-tile').length < n) {
      await new Promise(resolve => setTimeout(resolve));
    }
    document.body.getBoundingClientRect();
    const unfold = performance.now() - began;
    const { again, changed } = this.change(shown, clock, 'diverged');
    return { first, unfold, again: Math.max(again, folded.again), changed };
  },
  change(shown: IState, clock: (work: () => void) => number, status: RankStatus): { again: number; changed: number } {
    let changed = 0;
    const observer = new MutationObserver(records => (changed += records.length));
    observer.observe(document.getElementById('view')!, { subtree: true, childList: true, attributes: true, characterData: true });
    // As a message brings it: every object is a new one.
    const next: IState = JSON.parse(JSON.stringify(shown));
    next.ranks[5].status = status;
    const again = clock(() => root!.render(sidebar(next)));
    changed += observer.takeRecords().length;
    observer.disconnect();
    return { again, changed };
  }
};
