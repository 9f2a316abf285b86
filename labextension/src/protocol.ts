/**
 * What the kernel's side and the page say to each other: the Lab extension, and the sidebar.
 *
 * On the comm `jaxcluster.events`, whose id is fixed, only the kernel speaks: it sends the state
 * whenever that changes, cells as they go on, and the answers to requests. The page adopts the id
 * without opening anything, so a page without the extension hears nothing of it. On
 * `jaxcluster.rpc`, opened by the page, only the page speaks.
 *
 * The kernel's tests check that the messages of `jaxcluster/notebook/panel` are of these types.
 * `tests/golden/panel.json` has one example of every message, which the tests of both sides read.
 * Times are milliseconds since 1970 by the kernel's clock; `now` is that clock, so that "running for
 * 3 s" is right on a browser whose clock is off.
 */

export const PROTOCOL = 4;
export const EVENTS = 'jaxcluster.events';
export const EVENTS_ID = 'jaxcluster-events';
export const RPC = 'jaxcluster.rpc';
export const SHARDS_MIME = 'application/vnd.jaxcluster.shards+json';
export const OUTPUTS_MIME = 'application/vnd.jaxcluster.outputs+json';
export const OUTPUTS_VERSION = 1;

/** A running cluster of this user on the kernel's machine. */
export interface ICluster {
  name: string;
  launcher: string;
  num_processes: number;
  platform: string;
  /** When it was started. */
  created: number;
  /** Path or name of the notebook that started it; '' if there was none. */
  notebook: string;
  /** Whether no process is connected to it, and the one that it would end with is gone. */
  orphaned: boolean;
}

/** How far a rank has come; '' before it was heard of. */
export type StartStep = '' | 'up' | 'initialized' | 'ready';

/** A start of ranks that goes on, or the last one, which has failed. */
export interface IStart {
  name: string;
  since: number;
  /** How far each rank has come. */
  steps: StartStep[];
  /** Why it has failed; '' while it goes on. */
  failure: string;
  is_restart: boolean;
}

/** What a rank is doing. It waits in a collective; a debugger or a question has it paused. */
export type RankStatus =
  | 'starting'
  | 'idle'
  | 'running'
  | 'waiting'
  | 'paused'
  | 'interrupted'
  | 'silent'
  | 'dead';

/** What a rank uses: percents of a processor and of its GPUs' time, and bytes. */
export interface IUse {
  cpu: number | null;
  rss: number;
  gpu: number | null;
  gpu_used: number;
  /** 0 if there is no GPU, or nothing is known of it. */
  gpu_total: number;
}

/** One rank of the current cluster. */
export interface IRank {
  rank: number;
  status: RankStatus;
  host: string;
  pid: number;
  devices: string[];
  /** The running cell's number, as in `[7] line 3`; `line` is the line that it is in. */
  cell: number | null;
  line: number | null;
  /** Since when it has been in that cell; null while it runs none. */
  since: number | null;
  /** Why it is dead, or what else there is to say. */
  note: string;
  /** Measured while ranks are busy, and once after that. */
  use: IUse | null;
}

/** What went wrong; `dead`: processes ended. */
export type ReportKind = 'diverged' | 'failed' | 'hung' | 'dead';

/** How a cell went wrong, or which ranks died. */
export interface IReport {
  kind: ReportKind;
  cluster: string;
  /** The Jupyter cell's; `cell` is its number, 0 if none ran. */
  cell_id: string;
  cell: number;
  /** When, in milliseconds since 1970. */
  at: number;
  /** What happened, in a line. */
  title: string;
  /** More of it, and what was done about it. */
  lines: string[];
  /** The ranks that differed, failed or died. */
  culprits: number[];
  /** Whether ranks are dead, and it is the user's to restart. */
  open: boolean;
  /** The cell's; `marked` are its lines at which ranks raised an error. */
  source: string;
  marked: number[];
  /** The last ones that all of their ranks agreed on; '' if none is known. */
  launches: string;
}

/** Everything but cells. */
export interface IState {
  now: number;
  /** Auto mode: every following cell is an %%spmd cell. */
  spmd: boolean;
  /** Every cluster that runs here, this kernel's first. */
  clusters: ICluster[];
  /** The one that %%spmd uses; null while there is none. */
  current: string | null;
  /** One line like "starting: engines 3/4", while a start or restart goes on; else ''. */
  progress: string;
  start: IStart | null;
  ranks: IRank[];
  report: IReport | null;
  type: 'state';
  v: number;
}

/** How far a cell is on a rank. */
export type CellRankStatus =
  | 'running'
  | 'waiting'
  | 'paused'
  | 'done'
  | 'failed'
  | 'interrupted'
  | 'dead';

/** A cell on one rank. */
export interface ICellRank {
  rank: number;
  status: CellRankStatus;
  /** How long the cell took on this rank; null while it runs. */
  seconds: number | null;
}

/** One %%spmd cell as its ranks run it. The newest run of a Jupyter cell replaces older ones. */
export interface ICell {
  /** The Jupyter cell's. */
  cell_id: string;
  seq: number;
  /** As in [7]. */
  number: number;
  started: number;
  ranks: ICellRank[];
  /** Null while it runs. */
  ended: number | null;
  now: number;
  type: 'cell';
}

/** Everything there is. */
export interface IHello {
  state: IState;
  cells: ICell[];
}

/** What a page sends. */
export interface IRequest {
  /** `${client}:${number}`: the answer carries it, and other pages ignore that. */
  id: string;
  op: string;
  args: object;
  /** When it is refused if it was not heard before; the sidebar in a cell has no subshell. */
  until?: number;
}

/** What came of a request. */
export interface IAnswer {
  type: 'answer';
  id: string;
  result?: unknown;
  /** Set instead of the result. */
  error?: string;
}

/** A request of the sidebar in a cell has come to the kernel. */
export interface IHeard {
  type: 'heard';
  id: string;
}

/** Ranks with the same output. */
export interface IOutputGroup {
  ranks: number[];
  outputs: { [key: string]: unknown }[];
}

/** The output of several ranks in a cell, as the notebook keeps it. */
export interface IRanksOutputs {
  v: number;
  /** The cell's number, as in [7]. */
  cell: number;
  groups: IOutputGroup[];
  /** Ranks on which the cell has failed. Missing in older notebooks. */
  failed?: number[];
}

/** An option that has a field in the form; `options/table.py` declares it. */
export interface IFormField {
  key: string;
  flag: string;
  /** What its values are: "text", "count", "switch"... */
  kind: string;
  /** Those with which it is asked for; all if there is none. */
  launchers: string[];
  label: string;
  help: string;
  /** What is seen in it while it is empty. */
  empty: string;
}

/** What the form of a start is made of. */
export interface IForm {
  launchers: string[];
  platforms: string[];
  fields: IFormField[];
}

/** The output below a cell. */
export interface IShown {
  /** The cell's, as in [7]. */
  number: number;
  /** Whether nothing more comes. */
  is_over: boolean;
  mark: string;
  /** Null if they have not changed since `mark`. */
  outputs: { [key: string]: unknown }[] | null;
}

/** A variable that is an array or a pytree of arrays, as a list of variables shows it. */
export interface IVariable {
  name: string;
  /** "array", or the type of a pytree: "dict of 12 arrays", whose `shape` is null. */
  type: string;
  shape: number[] | null;
  dtype: string;
  /** The PartitionSpec in short, or what else the sharding is called. */
  sharding: string;
  nbytes: number;
  /** The most that one device holds of it. */
  nbytes_per_device: number;
}

/** What a view of an array asks for. */
export interface IQuestion {
  /**
   * Its layout now, whether its replicas are equal, the statistics of what a device holds of it, or
   * a part of these values.
   */
  op: 'look' | 'check' | 'stats' | 'peek';
  /** A part of the array or pytree that is shown. */
  name?: string;
  /** For "stats" and "peek". */
  rank?: number;
  /** Of that rank. */
  device?: number;
  /** For "peek": for each axis, counted from the shard's own corner. */
  start?: number[];
  /** In the same way. */
  stop?: number[];
}

/** What is asked, with what comes back. */
export interface IOperations {
  /** All, also if nothing has changed. */
  hello: { args: { client: string }; result: IHello };
  /** Whether every following cell is an %%spmd cell. */
  auto: { args: { on: boolean }; result: null };
  /** `line` is what would follow %jaxcluster start. The result is its last line. */
  start: { args: { line: string }; result: string };
  /** End the start, or the restart, that goes on. */
  cancel: { args: Record<string, never>; result: null };
  /** Run this notebook's cells on a cluster that runs, connected to already or not. */
  attach: { args: { name: string }; result: string };
  /** Stop a cluster, also one that this kernel is not connected to. */
  stop: { args: { name: string }; result: string };
  /** Give the ranks new processes, with their variables or without. */
  restart: { args: { clean: boolean }; result: string };
  /** Interrupt what runs; the result is the ranks that were interrupted. */
  interrupt: { args: Record<string, never>; result: number[] };
  /** The last lines of a rank's log; if null, of all ranks, each line with its rank. */
  logs: { args: { rank: number | null; lines: number }; result: string };
  /** Where all ranks are. */
  stacks: { args: Record<string, never>; result: string };
  /** The output of one rank in a cell. */
  outputs: { args: { cell_id: string; rank: number }; result: { [key: string]: unknown }[] };
  /**
   * The output below a cell, for a page that has not seen it run.
   *
   * `mark` is the last answer's, or ''.
   */
  shown: { args: { cell_id: string; mark: string }; result: IShown };
  /** The arrays of the ranks, and what has arrays in it. */
  variables: { args: Record<string, never>; result: IVariable[] };
  /** The document that static/shardview draws. `name` may be a part: params['w']. */
  look: { args: { name: string }; result: { [key: string]: unknown } };
  /** What static/shardview asks of a document; its `ask`. */
  ask: { args: { name: string; question: IQuestion }; result: unknown };
  /** The document of all meshes. */
  mesh: { args: Record<string, never>; result: { [key: string]: unknown } };
  /** The document of what is held on each device. */
  memory: { args: Record<string, never>; result: { [key: string]: unknown } };
}

export type Operation = keyof IOperations;

export type Message = IState | ICell | IAnswer;
