/** The sidebar without JupyterLab, and what the form makes of what is typed: in Node. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { actionOf, menuOf } from '../src/alone/actions';
import { english } from '../src/alone/english';
import { CommandIDs } from '../src/commandIds';
import { NO_OPTIONS, startLine, withLauncher } from '../src/widgets/startOptions';
import { golden } from './golden';

const state = golden.state;

test('words are filled in as a translator without a language does it', () => {
  assert.equal(english.__('%1 % CPU', 12), '12 % CPU');
  assert.equal(english.__('%1 cells run on it', '%%spmd'), '%%spmd cells run on it');
  assert.equal(english._n('rank %2', 'ranks %2', 2, '0-1'), 'ranks 0-1');
});

test('what ends processes asks first, and all else is done at once', () => {
  const stop = actionOf(CommandIDs.stop, { name: 'main' }, state, english);
  assert.ok(stop && 'question' in stop);
  assert.deepEqual(stop.question.answers[0].call, { op: 'stop', args: { name: 'main' } });
  const again = actionOf(CommandIDs.startAgain, { on_cpu: true }, state, english);
  assert.deepEqual(again, { call: { op: 'again', args: { on_cpu: true } } });
  // What needs Lab is not offered.
  assert.equal(actionOf(CommandIDs.inspect, {}, state, english), null);
});

test('the menu has what can be done now', () => {
  const commands = menuOf(state, english).map(([command]) => command);
  assert.ok(commands.includes(CommandIDs.interrupt) && commands.includes(CommandIDs.showReport));
  for (const command of commands) {
    assert.ok(actionOf(command, {}, state, english), command);
  }
  assert.deepEqual(menuOf({ ...state, current: null, report: null, ranks: [] }, english), []);
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
