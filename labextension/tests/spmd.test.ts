import assert from 'node:assert/strict';
import { test } from 'node:test';
import { staysInNotebook, withSpmd } from '../src/spmd';
import { read } from './golden';

for (const [source, place] of read('auto.json') as [string, string][]) {
  test(`auto mode runs ${JSON.stringify(source)} on the ${place}`, () => {
    assert.equal(staysInNotebook(source), place === 'notebook');
  });
}

test('%%spmd is written once, above the first line', () => {
  assert.equal(withSpmd('# sum\nx.sum()'), '%%spmd\n# sum\nx.sum()');
  assert.equal(withSpmd(withSpmd('x')), '%%spmd\nx');
  assert.equal(withSpmd('!ls'), '!ls');
});
