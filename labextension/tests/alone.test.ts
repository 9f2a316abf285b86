/** The sidebar without JupyterLab, and what the form makes of what is typed: in Node. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { actionsIn } from '../src/actions';
import { english } from '../src/alone/english';
import { NO_OPTIONS, startLine, withLauncher } from '../src/widgets/startOptions';
import { golden } from './golden';

const state = golden.state;

test('words are filled in as a translator without a language does it', () => {
  assert.equal(english.__('%1 % CPU', 12), '12 % CPU');
  assert.equal(english.__('%1 cells run on it', '%%spmd'), '%%spmd cells run on it');
  assert.equal(english._n('rank %2', 'ranks %2', 2, '0-1'), 'ranks 0-1');
});

test('what ends processes asks first, and all else is done at once', () => {
  const { stop, logs } = actionsIn(english);
  const asked = stop.does(state, { name: 'exp1' });
  assert.ok('answers' in asked);
  assert.deepEqual(asked.answers[0].call, { op: 'stop', args: { name: 'exp1' } });
  assert.deepEqual(logs.does(state, { rank: 2 }), { tab: 'logs', rank: 2 });
});

test('nothing is offered that does nothing', () => {
  const able = (now: typeof state) =>
    Object.entries(actionsIn(english)).flatMap(([id, { can }]) => (can(now, {}) ? [id] : []));
  assert.deepEqual(able({ ...state, current: null, report: null, ranks: [] }), []);
  assert.deepEqual(able(state), ['interrupt', 'restart', 'stop', 'report', 'stacks', 'logs', 'arrays']);
  const idle = state.ranks.map(rank => ({ ...rank, status: 'idle' as const }));
  assert.ok(!able({ ...state, ranks: idle }).includes('interrupt'));
});

test('a time limit fits a queue, unless one was typed', () => {
  const slurm = withLauncher(NO_OPTIONS, 'slurm');
  assert.equal(startLine(slurm), '--launcher slurm --timeout 1h');
  assert.equal(startLine(withLauncher(slurm, 'ssh')).includes('--timeout'), false);
  const typed = withLauncher({ ...NO_OPTIONS, timeout: '90' }, 'slurm');
  assert.equal(withLauncher(typed, '').timeout, '90');
});

test('half a variable is written as it is typed', () => {
  assert.equal(startLine({ ...NO_OPTIONS, env: 'BAR' }), '--env BAR');
  assert.equal(startLine({ ...NO_OPTIONS, env: 'BAR=' }), '--env BAR=');
});
