// Generated from jaxcluster/views/messages.py: python labextension/protocol.py

/**
 * The messages of the kernel's side and the page: the Lab extension, and the sidebar.
 *
 * Only the kernel speaks on the comm `jaxcluster.events`, whose id is fixed. It sends the state
 * when that changes, cells as they go on, and answers to requests. Only the page speaks on
 * `jaxcluster.rpc`, which it opens. `notebook/panel/operations` has the requests' arguments.
 *
 * `python labextension/protocol.py` makes the page's types of these, and comments of comments:
 * `labextension/src/protocol.ts`. `tests/golden/panel.json` has one example of every message. Times
 * are milliseconds since 1970 by the kernel's clock, and `now` is that clock. So "running for 3 s"
 * is right on a browser whose clock is off.
 */

/** How far a rank has come; '' before it was heard of. */
export type StartStep = '' | 'up' | 'initialized' | 'ready';

/** The kind of failure; "dead": processes ended. */
export type ReportKind = 'diverged' | 'failed' | 'hung' | 'dead';

/** How a cell went wrong, or which ranks died. */
export interface IReport {
  kind: ReportKind;
  cluster: string;
  /** The Jupyter cell's. */
  cell_id: string;
  /** Its number; 0 if none ran. */
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
  /** The cell's. */
  source: string;
  /** Its lines at which ranks raised an error. */
  marked: number[];
  /** The last that all of their ranks agreed on; '' if none is known. */
  launches: string;
}

/**
 * The use of a rank's process: percents of one processor, and of its GPUs' time.
 *
 * GPUs have values with nvidia-ml-py alone; their memory is that of all processes on them.
 */
export interface IRankResources {
  /** Since the reading before. */
  cpu: number;
  rss_nbytes: number;
  gpu: number | null;
  gpu_used_nbytes: number;
  gpu_total_nbytes: number;
}

export const PROTOCOL = 5;
export const EVENTS = 'jaxcluster.events';
export const EVENTS_ID = 'jaxcluster-events';
export const RPC = 'jaxcluster.rpc';
export const SHARDS_MIME = 'application/vnd.jaxcluster.shards+json';
export const OUTPUTS_MIME = 'application/vnd.jaxcluster.outputs+json';
export const OUTPUTS_VERSION = 1;

/** The activity of a rank. It waits in a collective; a debugger or a question has it paused. */
export type RankStatus =
  | 'starting'
  | 'idle'
  | 'running'
  | 'waiting'
  | 'paused'
  | 'interrupted'
  | 'silent'
  | 'dead';

/** How far a cell is on a rank. */
export type CellRankStatus =
  | 'running'
  | 'waiting'
  | 'paused'
  | 'done'
  | 'failed'
  | 'interrupted'
  | 'dead';

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

/** One rank of the current cluster. */
export interface IRank {
  rank: number;
  status: RankStatus;
  host: string;
  pid: number;
  devices: string[];
  /** The running cell's number, as in [7]. */
  cell: number | null;
  /** The line of the cell that it is in. */
  line: number | null;
  /** When it began that cell; null while it runs none. */
  since: number | null;
  /** Why it is dead, or what else there is to say. */
  note: string;
  /** Measured while ranks are busy, and once after that. */
  use: IRankResources | null;
}

/** Everything but cells. */
export interface IState {
  type: 'state';
  now: number;
  /** Auto mode: whether every following cell is an %%spmd cell. */
  spmd: boolean;
  /** Every cluster that runs here, this kernel's first. */
  clusters: ICluster[];
  /** The one that %%spmd uses; null while there is none. */
  current: string | null;
  /** Like "starting: engines 3/4" while a start or restart goes on; else ''. */
  progress: string;
  start: IStart | null;
  ranks: IRank[];
  report: IReport | null;
  v: number;
}

/** A cell on one rank. */
export interface ICellRank {
  rank: number;
  status: CellRankStatus;
  /** How long the cell took on this rank; null while it runs. */
  seconds: number | null;
}

/** One %%spmd cell as its ranks run it. The newest run of a Jupyter cell replaces older ones. */
export interface ICell {
  type: 'cell';
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
}

/** Everything there is. */
export interface IHello {
  state: IState;
  cells: ICell[];
}

/** A page's request. */
export interface IRequest {
  /** `${client}:${number}`: the answer carries it, and other pages ignore that. */
  id: string;
  op: string;
  args: unknown;
  /** When it is refused if it was not heard before; the sidebar in a cell has no subshell. */
  until?: number;
}

/** The result of a request, or its error. */
export interface IAnswer {
  type: 'answer';
  id: string;
  result?: unknown;
  /** In place of the result. */
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
  /** Its number, as in [7]. */
  cell: number;
  groups: IOutputGroup[];
  /** Ranks on which the cell has failed; not in older notebooks. */
  failed?: number[];
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
  /** "array", or the type of a pytree: "dict of 12 arrays". */
  type: string;
  /** Null of a pytree. */
  shape: number[] | null;
  dtype: string;
  /** The PartitionSpec in short, or what else the sharding is called. */
  sharding: string;
  nbytes: number;
  /** The most that one device holds of it. */
  nbytes_per_device: number;
}

/** A question of an array's view. */
export interface IQuestion {
  /**
   * Its layout now, whether its replicas are equal, the statistics of a device's part, or some of
   * that part's values.
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

/** A page's requests, with their results. A method's parameters are the request's arguments. */
export interface IOperations {
  /** All, also if nothing has changed. */
  hello: { args: Record<string, never>; result: IHello };
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
  /** The stacks of all ranks. */
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
  /** Static/shardview's question. `name` may be a part: params['w']. */
  ask: { args: { name: string; question: IQuestion }; result: unknown };
  /** The document of all meshes. */
  mesh: { args: Record<string, never>; result: { [key: string]: unknown } };
  /** The document of the bytes on each device. */
  memory: { args: Record<string, never>; result: { [key: string]: unknown } };
}

export type Operation = keyof IOperations;

export type Message = IState | ICell | IAnswer;
