import assert from 'node:assert/strict';
import { test } from 'node:test';
import { addedText } from '../src/outputs';
import { formatRanks } from '../src/ranks';

const stream = (text: string | string[]) => ({ output_type: 'stream', name: 'stdout', text });

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

test('ranks are written in runs', () => {
  assert.equal(formatRanks([]), '');
  assert.equal(formatRanks([5, 0, 1, 2, 8, 7, 2]), '0-2, 5, 7, 8');
});
