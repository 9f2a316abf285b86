/**
 * What the kernel's side (jaxcluster/panel.py) and this extension say to each other.
 *
 * Two comms. On `jaxcluster.events`, whose id is fixed, only the kernel speaks: it sends the state
 * whenever that changes, cells as they go on, and the answers to requests. The extension adopts the id
 * without opening anything, so a frontend without the extension hears nothing of it. On
 * `jaxcluster.rpc`, opened by the extension, only the extension speaks.
 *
 * tests/golden/panel.json holds one example of every message; it is read by the tests of both sides.
 * Times are milliseconds since 1970 by the kernel's clock; `now` says what that clock shows, so that
 * "running for 3 s" is right on a browser whose clock is off.
 */

export const PROTOCOL = 1;
export const EVENTS = 'jaxcluster.events';
export const EVENTS_ID = 'jaxcluster-events';
export const RPC = 'jaxcluster.rpc';
/** What the ranks use comes as an update of a display that no notebook has: see panel/resources.py. */
export const RESOURCES_ID = 'jaxcluster-resources';
export const RESOURCES_MIME = 'application/vnd.jaxcluster.resources+json';
export const SHARDS_MIME = 'application/vnd.jaxcluster.shards+json';
export const JOURNAL_MIME = 'application/vnd.jaxcluster.journal+json';

// ------------------------------------------------------------------------------------- the state

/** What a rank is doing, as a user would say it. */
export type RankStatus =
  | 'starting'
  | 'idle'
  | 'running'
  | 'waiting' // in a collective
  | 'paused' // a person holds it: in a debugger, or by a question
  | 'interrupted'
  | 'silent' // does not answer
  | 'diverged'
  | 'dead';

export interface IRank {
  rank: number;
  status: RankStatus;
  host: string;
  pid: number;
  devices: string[];
  /** The running cell's number and line, as in [7] line 3. */
  cell: number | null;
  line: number | null;
  /** Since when it has been in that cell; null while it runs none. */
  since: number | null;
  rss: number;
  /** Why it is dead, or what else is to be said of it. */
  note: string;
}

/** A running cluster of this user on the kernel's machine. */
export interface ICluster {
  name: string;
  launcher: string;
  num_processes: number;
  platform: string;
  host: string;
  /** When it was started. */
  created: number;
  /** Path or name of the notebook that started it; '' if there was none. */
  notebook: string;
  /** Whether this kernel is connected to it, and whether it ends with this kernel. */
  connected: boolean;
  owned: boolean;
  /** Whether the process that it would end with is gone, and no notebook holds it. */
  orphaned: boolean;
}

/** What was found of a cell that went wrong. */
export type ReportKind =
  | 'missing' // a launch that some ranks skipped
  | 'mismatch' // different programs
  | 'circle' // ranks waited for each other
  | 'dead' // processes have ended
  | 'step'; // not in lockstep, and nobody in particular is to blame

/** A line of a cell at which ranks were. */
export interface IPlace {
  /** The cell's number. */
  cell: number;
  line: number;
  ranks: number[];
  /** What they did there: `differs` is said of those to blame, `died` of those last seen there. */
  what: 'waited' | 'launched' | 'differs' | 'died' | 'was';
}

/** One launch of a lane; null where its ranks have not made it. */
export interface ILaunch {
  name: string;
  /** Equal on all lanes for the same program. */
  program: number;
  cell: number | null;
  line: number | null;
  /** The line of a script or module that launched it, where that was not the cell's: "train.py line 3: x.sum()". */
  within: string;
}

/** Ranks that have made the same launches, from the timeline's first one on. */
export interface ILane {
  ranks: number[];
  launches: (ILaunch | null)[];
  /** Whether they are in a cell still: what they have not launched may come. */
  under_way: boolean;
  /** Whether their processes have ended: they could not launch more. Missing in older notebooks. */
  died?: boolean;
}

/** The last launches that a set of processes should have made together. */
export interface ITimeline {
  processes: number[];
  /** The number of the first launch that is shown, from 1 on. */
  first: number;
  lanes: ILane[];
  /** Ranks that are left out, where there are too many lanes. */
  hidden: number[];
  /** Those that differ from the most at the first launch that differs. Missing in older notebooks. */
  odd?: number[];
}

/** A certain finding, or the death of ranks: who was where, and who is to blame. */
export interface IReport {
  /** Changes with every new finding. */
  id: string;
  kind: ReportKind;
  cluster: string;
  /** The Jupyter cell's id, and its number. */
  cell_id: string;
  cell: number;
  at: number;
  /** The finding in words, a line each, the cause first; the last ones may be hints. */
  lines: string[];
  /** The cause in a few words: "KeyError on rank 2". */
  title: string;
  waiting: number[];
  culprits: number[];
  /** The stacks of all ranks as they were then, as %jaxcluster stacks shows them. */
  stacks: string;
  /** What was done about it: "Back in lockstep after 0.3 s: ..."; '' while nothing is known yet. */
  recovered: string;
  /** Whether the ranks are still not in lockstep: recovery is the user's to choose. */
  open: boolean;
  places: IPlace[];
  timelines: ITimeline[];
}

/** A start of ranks that goes on, or the last one, which has failed. */
export interface IStart {
  name: string;
  since: number;
  /** How far each rank has come. */
  steps: StartStep[];
  /** Why it has failed; '' while it goes on. */
  failure: string;
  /** Whether it would probably work on CPU. */
  on_cpu: boolean;
  is_restart: boolean;
}

/** '': nothing was heard of the rank yet. */
export type StartStep = '' | 'up' | 'initialized' | 'ready';

/** The last cell of this notebook, and whether it can be taken back. */
export interface IUndo {
  seq: number;
  /** The Jupyter cell's id, and its number. */
  cell_id: string;
  cell: number;
  /** It is undone: by its end, or by the user. */
  is_done: boolean;
  /** Why it can't be undone; '' where it can, as far as is known without asking the ranks. */
  refused: string;
}

/** Everything but cells. */
export interface IState {
  type: 'state';
  v: number;
  now: number;
  /** Version of the Python package. */
  version: string;
  /** Auto mode: every following cell is an %%spmd cell. Null: it is off, and nobody has switched. */
  spmd: boolean | null;
  /** Every cluster that runs here, this kernel's first. */
  clusters: ICluster[];
  /** The one that %%spmd uses; null while there is none. */
  current: string | null;
  /** One line like "starting: engines 3/4", while a start or restart goes on; else ''. */
  progress: string;
  start: IStart | null;
  ranks: IRank[];
  strict: boolean;
  recovery: 'auto' | 'ask' | 'never';
  report: IReport | null;
  /** Null while no cell has run. Missing in older kernels. */
  undo?: IUndo | null;
}

// ------------------------------------------------------------------------------------------- cells

export type CellRankStatus =
  | 'running'
  | 'waiting'
  | 'paused'
  | 'done'
  | 'failed'
  | 'interrupted'
  | 'dead';

export interface ICellRank {
  rank: number;
  status: CellRankStatus;
  /** How long the cell took on this rank, in seconds; null while it runs. */
  seconds: number | null;
}

/** One %%spmd cell as its ranks run it. The newest run of a Jupyter cell takes the older one's place. */
export interface ICell {
  type: 'cell';
  now: number;
  /** The Jupyter cell's id. */
  cell_id: string;
  seq: number;
  cluster: string;
  /** As in [7]. */
  number: number;
  started: number;
  /** Null while it runs. */
  ended: number | null;
  ranks: ICellRank[];
  /** Whether a person has held some of them: then nobody was slow. */
  held: boolean;
}

// --------------------------------------------------------------------------------------- resources

/** One rank's samples, oldest first: percents of a processor and of its GPUs' time, and bytes. */
export interface ISeries {
  rank: number;
  cpu: (number | null)[];
  rss: number[];
  gpu: (number | null)[];
  gpu_used: number[];
  /** 0 where there is no GPU, or nothing is known of it. */
  gpu_total: number;
}

/** What the ranks of a cluster use. */
export interface IResources {
  type: 'resources';
  now: number;
  cluster: string;
  ranks: ISeries[];
  /** Whether it takes the place of all that was known; else it comes after that. */
  whole: boolean;
  /** Milliseconds between two samples. */
  every: number;
}

// ------------------------------------------------------------------------- requests and answers

/** What is asked, with what comes back. Errors come back as texts that say what to do next. */
export interface IOperations {
  /** Everything, also when nothing has changed. `client` is this page's; an older one of it is dropped. */
  hello: { args: { client: string }; result: { state: IState; cells: ICell[] } };
  /** Whether this page shows what the ranks use. Then it is sent, every 2 s. */
  watch: { args: { on: boolean }; result: null };
  /** `restore`: the notebook says that it was on; that counts only if nobody has switched since. */
  auto: { args: { on: boolean; restore?: boolean }; result: null };
  /** The profiles that a start can take here. */
  profiles: { args: Record<string, never>; result: IProfile[] };
  /** `line` is what would follow `%jaxcluster start`. The result is the one line that it ends in. */
  start: { args: { line: string }; result: string };
  /** Try the failed start again, with the same options, or on CPU. */
  again: { args: { on_cpu: boolean }; result: string };
  /** End the start that goes on. */
  cancel: { args: Record<string, never>; result: null };
  /** Forget the start that has failed. */
  dismiss: { args: Record<string, never>; result: null };
  attach: { args: { name: string }; result: string };
  /** Run this notebook's cells on another cluster, connected to already or not. */
  use: { args: { name: string }; result: string };
  /** Stops a cluster, also one that this kernel is not connected to. */
  stop: { args: { name: string }; result: string };
  restart: { args: { clean: boolean }; result: string };
  resync: { args: Record<string, never>; result: string };
  /** Take back the last cell, whose seq this is. */
  undo: { args: { seq: number }; result: string };
  strict: { args: { on: boolean }; result: null };
  /** The ranks that were interrupted. */
  interrupt: { args: Record<string, never>; result: number[] };
  /** The last lines of a rank's log; of all ranks, each line with its rank, where that is null. */
  logs: { args: { rank: number | null; lines: number }; result: string };
  stacks: { args: Record<string, never>; result: string };
  /** The last launches of each set of processes. */
  journal: { args: Record<string, never>; result: ITimeline[] };
  /** The output of one rank in a cell, as notebook outputs (nbformat 4). */
  outputs: { args: { cell_id: string; rank: number }; result: INotebookOutput[] };
  /** What stands below a cell, for a page that has not seen it run. `mark` is the last answer's, or ''. */
  shown: { args: { cell_id: string; mark: string }; result: IShown };
  variables: { args: Record<string, never>; result: IVariable[] };
  /** The document that static/shardview draws. `name` may be a part: params['w']. */
  look: { args: { name: string }; result: object };
  /** What static/shardview asks of a document: {op: stats|peek|check|look, ...}; its `ask`. */
  ask: { args: { name: string; question: object }; result: unknown };
  mesh: { args: Record<string, never>; result: object };
  memory: { args: Record<string, never>; result: object };
}

export type Operation = keyof IOperations;

/** Options of a start that are in a jaxcluster.toml under a name. */
export interface IProfile {
  name: string;
  /** File and line. */
  place: string;
  /** Whether a start takes it where none is named. */
  is_default: boolean;
  /** Each option with its value as text; a switch alone. */
  options: string[][];
  /** Why it can't be used; '' if it can. */
  problem: string;
}

export interface IVariable {
  name: string;
  /** 'array' or the type of a pytree: 'dict of 12 arrays'. */
  type: string;
  shape: number[] | null;
  dtype: string;
  /** PartitionSpec or what else the sharding is called. */
  sharding: string;
  nbytes: number;
  /** The most that one device holds of it. */
  nbytes_per_device: number;
  /** Whether it spans processes. */
  spans: boolean;
}

/** What stands below a cell. */
export interface IShown {
  /** The cell's, as in [7]. */
  number: number;
  /** Whether nothing more comes. */
  is_over: boolean;
  mark: string;
  /** Null where it has not changed since that mark. */
  outputs: INotebookOutput[] | null;
}

export type INotebookOutput = { output_type: string; [key: string]: unknown };

export interface IRequest {
  /** `${client}:${number}`: the answer carries it, and other pages ignore that. */
  id: string;
  op: Operation;
  args: object;
  /** When it is to be refused if it was not heard before; the sidebar in a cell has no subshell. */
  until?: number;
}

export interface IAnswer {
  type: 'answer';
  id: string;
  result?: unknown;
  /** Set instead of the result. */
  error?: string;
}

export type Message = IState | ICell | IAnswer | IResources;
