import assert from 'node:assert/strict';
import { test } from 'node:test';
import { OUTPUTS_MIME } from '../src/protocol';
import { addedText, differences, keptOutputs, linesOf } from '../src/ranksOutputs';
import { formatRanks, parseRanks } from '../src/ranks';
import { readRun, saveRun } from '../src/savedRun';
import { golden } from './golden';

const stream = (text: string | string[]) => ({ output_type: 'stream', name: 'stdout', text });

test('what a notebook keeps of a rank is found', () => {
  const shown = { v: 1, cell: 7, groups: [{ ranks: [0, 2], outputs: [stream('a')] }, { ranks: [1], outputs: [] }] };
  const cell = [stream('Only on ranks 0-2:'), { output_type: 'display_data', data: { [OUTPUTS_MIME]: shown } }];
  assert.deepEqual(keptOutputs(cell, 2), [stream('a')]);
  assert.deepEqual(keptOutputs(cell, 1), []);
  assert.equal(keptOutputs(cell, 3), null);
  assert.equal(keptOutputs([stream('a')], 0), null);
});

test('outputs are compared by their lines', () => {
  const picture = { output_type: 'display_data', data: { 'image/png': 'x', 'text/plain': '<Figure>' } };
  assert.deepEqual(linesOf([stream(['a\n', 'b']), stream('c\n'), picture]), ['a', 'bc', '[image/png]']);
  const told = (there: string, here: string) =>
    differences([...there], [...here]).map(({ sign, line }) => sign + line).join('');
  assert.equal(told('abc', 'abc'), ' a b c');
  assert.equal(told('', 'ab'), '+a+b');
  assert.equal(told('abcd', 'axcd'), ' a-b+x c d');
  const common = differences([...'abcabba'], [...'cbabac']).filter(({ sign }) => sign === ' ');
  assert.equal(common.length, 4); // of the longest common subsequence
  const many = Array.from({ length: 3000 }, (_, i) => String(i));
  assert.equal(differences(many, many.map(line => `${line}!`)).length, 6000);
});

test('text is added where nothing else has changed', () => {
  const picture = { output_type: 'display_data', data: { 'image/png': 'x' } };
  assert.equal(addedText([], []), '');
  assert.equal(addedText([stream('a')], [stream(['a', 'b'])]), 'b');
  assert.equal(addedText([picture, stream('a')], [picture, stream('ab')]), 'b');
  assert.equal(addedText([picture], [picture]), '');
  assert.equal(addedText([], [stream('a')]), null);
  assert.equal(addedText([stream('a')], [stream('a'), picture]), null);
  assert.equal(addedText([stream('a')], []), null);
  assert.equal(addedText([stream('a')], [stream('b')]), null);
  assert.equal(addedText([stream('a')], [{ ...stream('ab'), name: 'stderr' }]), null);
  assert.equal(addedText([picture, stream('a')], [stream('x'), stream('ab')]), null);
  assert.equal(addedText([picture], [{ ...picture, data: {} }]), null);
});

test('ranks are read as they are written', () => {
  for (const ranks of [[0], [0, 1], [0, 2, 3, 4, 9], []]) {
    assert.deepEqual(parseRanks(formatRanks(ranks)), ranks);
  }
  assert.deepEqual(parseRanks('x, 3-1, 2'), [2]);
});

test('how a cell went is saved with it, in few lines', () => {
  const run = {
    ...golden.cell,
    ended: golden.cell.started + 2500,
    ranks: Array.from({ length: 64 }, (_, rank) => ({
      rank,
      status: rank === 5 ? ('failed' as const) : rank === 7 ? ('dead' as const) : ('done' as const),
      seconds: rank === 7 ? null : 0.25 + rank / 4
    }))
  };
  const saved = saveRun(run);
  assert.ok(JSON.stringify(saved, null, 1).split('\n').length < 12);
  const read = readRun(JSON.parse(JSON.stringify(saved)), run.cell_id)!;
  assert.deepEqual(read.ranks, run.ranks);
  assert.equal(read.number, run.number);
  assert.equal(saveRun(golden.cell), null); // it runs
  for (const foreign of [null, {}, { number: 1 }, 'x', { number: 1, started: 1, ended: 2, done: {} }]) {
    assert.equal(readRun(foreign, 'id'), null);
  }
});
