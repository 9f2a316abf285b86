import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, mock, test } from 'node:test';
import { greeted, NOTHING, reduce, Requests, silent } from '../src/store';
import type { ICell, IState } from '../src/protocol';
import { golden } from './golden';

const NOW = golden.state.now;
const state = (changes: Partial<IState> = {}): IState => ({ ...golden.state, ...changes });
const cell = (changes: Partial<ICell> = {}): ICell => ({ ...golden.cell, ...changes });

describe('state', () => {
  test('a push replaces it', () => {
    const first = reduce(NOTHING, state({ progress: 'engines 1/4' }), NOW);
    const second = reduce(first, state({ progress: '', now: NOW + 10 }), NOW);
    assert.equal(first.state?.progress, 'engines 1/4');
    assert.equal(second.state?.progress, '');
  });

  test('an answer that a push has overtaken does not', () => {
    const pushed = reduce(NOTHING, state({ spmd: true, now: NOW + 10 }), NOW);
    const answered = greeted(pushed, { state: state({ spmd: false }), cells: [] }, NOW);
    assert.equal(answered.state?.spmd, true);
  });

  test('a clock that was set back by an hour does not freeze it', () => {
    const before = reduce(NOTHING, state({ spmd: true }), NOW);
    const after = reduce(before, state({ spmd: false, now: NOW - 3_600_000 }), NOW);
    assert.equal(after.state?.spmd, false);
  });

  test('another version of the protocol is not understood', () => {
    const known = reduce(NOTHING, state({ v: 99 }), NOW);
    assert.equal(known.state, null);
    assert.equal(known.differs, true);
  });

  test('with a lost connection it is unknown, and the cells stay', () => {
    const known = greeted(NOTHING, { state: state(), cells: [cell()] }, NOW);
    assert.equal(silent(known).state, null);
    assert.equal(silent(known).cells.size, 1);
  });
});

describe('cells', () => {
  test('a new run takes the place of the older one of the same Jupyter cell', () => {
    const first = reduce(NOTHING, cell({ seq: 12 }), NOW);
    const again = cell({ seq: 13, started: golden.cell.started + 5 });
    const second = reduce(first, again, NOW);
    assert.deepEqual([...second.cells.values()], [again]);
  });

  test('the first cell of a new cluster of the same name does too, with its lower seq', () => {
    const first = reduce(NOTHING, cell({ seq: 12 }), NOW);
    const fresh = cell({ seq: 1, started: golden.cell.started + 5 });
    assert.equal(reduce(first, fresh, NOW).cells.get(fresh.cell_id)?.seq, 1);
  });

  test('what an older run says is ignored', () => {
    const newer = reduce(NOTHING, cell({ started: golden.cell.started + 5 }), NOW);
    assert.equal(reduce(newer, cell(), NOW).cells, newer.cells);
  });
});

test('the quickest message tells how far the clocks are apart', () => {
  const late = reduce(NOTHING, state(), NOW + 900);
  const quick = reduce(late, state({ now: NOW + 1000 }), NOW + 1005);
  const lateAgain = reduce(quick, state({ now: NOW + 2000 }), NOW + 2500);
  assert.equal(late.clockOffset, -900);
  assert.equal(lateAgain.clockOffset, -5);
});

describe('requests', () => {
  beforeEach(() => mock.timers.enable({ apis: ['setTimeout'] }));
  afterEach(() => mock.timers.reset());

  test('have ids of their page, and get their own answers', async () => {
    const requests = new Requests('3f2a');
    const logs = requests.make('logs', { rank: 1, lines: 5 }, 1000, 'late');
    const stacks = requests.make('stacks', {}, 1000, 'late');
    assert.deepEqual(logs.request, { id: '3f2a:1', op: 'logs', args: { rank: 1, lines: 5 } });
    assert.ok(requests.settle({ type: 'answer', id: '3f2a:2', result: 'stacks' }));
    assert.ok(requests.settle({ type: 'answer', id: '3f2a:1', result: 'logs' }));
    assert.equal(await logs.result, 'logs');
    assert.equal(await stacks.result, 'stacks');
  });

  test('of other pages are left alone', () => {
    const requests = new Requests('3f2a');
    void requests.make('stacks', {}, 1000, 'late');
    assert.equal(requests.settle({ type: 'answer', id: 'b771:1', result: 'theirs' }), false);
  });

  test('fail with what the kernel says, word for word', async () => {
    const requests = new Requests(golden.error.id.split(':')[0]);
    const made = Array.from({ length: Number(golden.error.id.split(':')[1]) }, () =>
      requests.make('stop', { name: 'main' }, 1000, 'late')
    );
    requests.settle(golden.error);
    await assert.rejects(made[made.length - 1].result, { message: golden.error.error });
  });

  test('without an answer say so in time, and an answer after that is no harm', async () => {
    const requests = new Requests('3f2a');
    const { request, result } = requests.make('stacks', {}, 1000, 'No answer within 1 s.');
    mock.timers.tick(1001);
    await assert.rejects(result, { message: 'No answer within 1 s.' });
    assert.equal(requests.settle({ type: 'answer', id: request.id, result: '' }), false);
  });

  test('all end with the kernel', async () => {
    const requests = new Requests('3f2a');
    const made = [1, 2].map(() => requests.make('stacks', {}, 1000, 'late').result);
    requests.dropAll('The kernel is gone.');
    for (const result of made) {
      await assert.rejects(result, { message: 'The kernel is gone.' });
    }
  });
});

test('every example of the kernel is understood', () => {
  for (const message of [golden.state, golden.state_without_cluster]) {
    assert.equal(reduce(NOTHING, message, NOW).state, message);
  }
  for (const answer of golden.answers) {
    const [client] = answer.id.split(':');
    assert.equal(answer.type, 'answer');
    assert.ok(client);
  }
});
