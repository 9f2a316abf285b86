import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { IRank, IState, RankStatus } from '../src/protocol';
import { NO_OPTIONS, hostsHaveRanks, quote, startLine } from '../src/widgets/startOptions';
import { chipText, countStatuses, groupRanks, lasting, placeOf, took, type Trans } from '../src/widgets/labels';
import { golden, startLines } from './golden';

/** As a translator without a language does it. */
const format = (text: string, ...args: unknown[]) =>
  text.replace(/%%/g, '%% ').replace(/%(\d+)/g, (_, n) => String(args[n - 1])).replace(/%% /g, '%');
const trans: Trans = {
  __: format,
  _n: (one, many, n, ...args) => format(n === 1 ? one : many, n, ...args)
};

const ranks = (...statuses: RankStatus[]): IState => ({
  ...golden.state,
  ranks: statuses.map((status, rank): IRank => ({ ...golden.state.ranks[0], rank, status }))
});

describe('labels', () => {
  test('the chip says what differs, the worst first', () => {
    assert.equal(chipText(ranks('idle', 'idle'), trans), '2/2 idle');
    assert.equal(chipText(ranks('running', 'waiting', 'running', 'running'), trans), '3 running · 1 waiting');
    assert.equal(chipText(ranks('idle', 'dead', 'idle'), trans), '1 dead');
    assert.equal(chipText(ranks('running', 'silent'), trans), '1 silent · 1 running');
    assert.equal(chipText(golden.state_without_cluster, trans), 'no cluster');
    assert.equal(chipText({ ...ranks('idle'), progress: 'engines 1/2' }, trans), 'engines 1/2');
  });

  test('statuses are counted, the ones to look at first', () => {
    const counted = countStatuses(ranks('idle', 'running', 'dead', 'idle').ranks);
    assert.deepEqual(counted, [['dead', 1], ['running', 1], ['idle', 2]]);
  });

  test('ranks that do the same are one line, those that differ from most come first', () => {
    const { ranks: all } = ranks('idle', 'running', 'idle', 'dead', 'running', 'idle');
    const numbers = groupRanks(all).map(group => group.map(({ rank }) => rank));
    assert.deepEqual(numbers, [[3], [1, 4], [0, 2, 5]]);
  });

  test('times are as exact as is worth reading', () => {
    assert.deepEqual([0.351, 9.994, 9.996, 59.9, 59.96, 125].map(s => took(s, trans)),
      ['0.35 s', '9.99 s', '10.0 s', '59.9 s', '1 min 00 s', '2 min 05 s']);
    assert.deepEqual([-3, 12.9, 125, 12000].map(s => lasting(s, trans)),
      ['0 s', '12 s', '2 min 05 s', '3 h 20 min']);
  });

  test('a place is a cell and a line, as far as they are known', () => {
    assert.equal(placeOf({ cell: 7, line: 3 }, trans), '[7] line 3');
    assert.equal(placeOf({ cell: 7, line: null }, trans), '[7]');
    assert.equal(placeOf({ cell: null, line: null }, trans), '');
  });
});

describe('the form', () => {
  test('nothing chosen is nothing typed', () => {
    assert.equal(startLine(NO_OPTIONS), '');
  });

  test('the line has what was chosen, quoted where it must be', () => {
    const line = startLine({
      ...NO_OPTIONS,
      numProcesses: ' 4',
      devicesPerProcess: '2',
      platform: 'cpu',
      name: 'exp',
      env: "A=1\n\nXLA_FLAGS=--x --y='z'\n",
      timeout: '120',
      detach: true,
      more: '--dry-run'
    });
    assert.equal(
      line,
      `-n 4 --devices-per-process 2 --platform cpu --name exp --env A=1 --env 'XLA_FLAGS=--x --y='"'"'z'"'"'' --timeout 120 --detach --dry-run`
    );
    assert.equal(quote('a b'), "'a b'");
    assert.equal(quote('a=b/c.d'), 'a=b/c.d');
  });

  test('each launcher has its own options, and the line none of another', () => {
    for (const { options, line } of startLines) {
      assert.equal(startLine({ ...NO_OPTIONS, ...options }), line);
    }
  });

  test('hosts that have their numbers of ranks leave none for all', () => {
    const has = (hosts: string) => hostsHaveRanks({ ...NO_OPTIONS, launcher: 'ssh', hosts });
    assert.deepEqual(['h1:2', 'me@h1:2,h2:2', '[fe80:1::2]:4', 'n[1-4]:8', 'h1:2:2222'].filter(h => !has(h)), []);
    assert.deepEqual(['h1', 'h1,h2', '[fe80:1::2]', 'n[1-4]', ''].filter(has), []);
  });
});
