import assert from 'node:assert/strict';
import { test } from 'node:test';
import { staysInNotebook, whereOf } from '../src/spmd';
import {
  hasOnly,
  linesToRun,
  loadIn,
  numberIn,
  placeMode,
  placeStart,
  startIn,
  withNumber,
  withoutMode
} from '../src/startLine';
import { read } from './golden';

for (const [source, place] of read('auto.json') as [string, string][]) {
  test(`auto mode runs ${JSON.stringify(source)} on the ${place}`, () => {
    assert.equal(staysInNotebook(source), place === 'notebook');
  });
}

test('a cell says on which ranks it will run', () => {
  for (const [source, off, on] of [
    ['%%spmd\nx', '', ''],
    ['\n  %%spmd --ranks 1,3 --all\nx', '1,3', '1,3'],
    ['%%spmd --ranks=0,2-3\nx', '0,2-3', '0,2-3'],
    ['%%spmds\nx', null, null],
    ['%%time\nx', null, null],
    ['x', null, ''],
    ['# %%spmd\nx', null, ''],
    ['%jaxcluster start', null, null],
    ['', null, null]
  ] as [string, string | null, string | null][]) {
    assert.equal(whereOf(source, false), off, source);
    assert.equal(whereOf(source, true), on, source);
  }
});

test('a click runs the line, and not what else its cell has', () => {
  const load = '%load_ext jaxcluster';
  const start = '%jaxcluster start -n 4 \\\n    --name a';
  const auto = '%jaxcluster auto on';
  for (const [source, runs, loads] of [
    [start, start.replace('    ', ''), ''],
    [`${load}\n${auto}\n${start}`, `${load}\n${auto}\n${start.replace('    ', '')}`, load],
    [`import os; os.remove("x")\n  ${load}\nif x:\n    %jaxcluster start -n 2\n!rm y`, `${load}\n%jaxcluster start -n 2`, load],
    [`${load}\nsteal()`, load, load]
  ]) {
    assert.equal(linesToRun(source, true), runs, source);
    assert.equal(linesToRun(source, false), loads, source);
  }
  assert(hasOnly(`# two\n${load}\n\n  ${start}`, linesToRun(`${load}\n${start}`, true)));
  assert(!hasOnly(`${load}\n${start}\nsteal()`, linesToRun(`${load}\n${start}`, true)));
  assert(!hasOnly(`${load}\n${load}`, load)); // once is what was said
  assert(!hasOnly(`${load}\n${start}`, load)); // *Load it* starts nothing
});

test('a start has one place in a notebook', () => {
  const place = (cells: (string | null)[], line: string) => {
    const { index, source, isNew } = placeStart(cells, line);
    return [index, source, isNew];
  };
  const load = '%load_ext jaxcluster';
  assert.deepEqual(place([], '-n 4'), [0, `${load}\n%jaxcluster start -n 4`, true]);
  assert.deepEqual(place([null, 'x = 1'], '-n 4'), [1, `${load}\n%jaxcluster start -n 4`, true]);
  assert.deepEqual(place([null, load, 'x'], ''), [2, '%jaxcluster start', true]);
  // What starts the same cluster is replaced, where it stands, and what starts another one is not.
  const both = `${load}\n%jaxcluster start -n 2  # two\nx = 1`;
  assert.deepEqual(place([both], '-n 4'), [0, `${load}\n%jaxcluster start -n 4\nx = 1`, false]);
  assert.deepEqual(place([load, '%jaxcluster start -n 2 --name a'], '-n 4'), [
    1,
    '%jaxcluster start -n 4',
    true
  ]);
  assert.deepEqual(place([load, '%jaxcluster start --name=a -n 2'], '-n 4 --name a'), [
    1,
    '%jaxcluster start -n 4 --name a',
    false
  ]);
  assert.deepEqual(place([load, '%%writefile x\n%jaxcluster start'], '')[2], true);
  assert.deepEqual(place(['%jaxcluster start', load], "--env 'A=$&'"), [
    0,
    "%jaxcluster start --env 'A=$&'",
    false
  ]);
});

test("the notebook's own start line keeps its options with another number", () => {
  const cells = [null, 'import os', '%load_ext jaxcluster\n%jaxcluster start -n 4 --platform cpu'];
  assert.equal(startIn(cells), '-n 4 --platform cpu');
  assert.equal(startIn(['%%spmd\n%jaxcluster start', 'x']), null);
  assert.equal(loadIn(cells), 2);
  assert.equal(numberIn('--platform cpu -n 16'), 16);
  assert.equal(numberIn('--name run-n 4'), null);
  assert.equal(withNumber('-n 4 --platform cpu', 8), '-n 8 --platform cpu');
  assert.equal(withNumber('--platform cpu --num-processes=4', 8), '--platform cpu --num-processes 8');
  assert.equal(withNumber('--devices-per-process 2', 8), '-n 8 --devices-per-process 2');
  assert.equal(withNumber('', 8), '-n 8');
});

test('SPMD mode stands in the text, above what brings the cluster', () => {
  const load = '%load_ext jaxcluster';
  const on = '%jaxcluster auto on';
  const place = (...cells: (string | null)[]) => {
    const found = placeMode(cells);
    return found && [found.index, found.source, found.isNew];
  };
  for (const bring of [
    '%jaxcluster start -n 4 \\\n  --platform cpu',
    '%jaxcluster attach main',
    'cluster = jaxcluster.start(4)',
    'jaxcluster.attach()'
  ]) {
    const cells = [null, 'x = 1', `${load}\n${bring}`, 'y'];
    const written = `${load}\n${on}\n${bring}`;
    assert.deepEqual(place(...cells), [2, written, false]);
    assert.equal(place(null, 'x = 1', written, 'y'), null, 'it is there');
    assert.deepEqual(withoutMode([null, 'x = 1', written, 'y']), [{ index: 2, source: cells[2] }]);
  }
  assert.deepEqual(place(load, 'if True:\n    %jaxcluster start'), [
    1,
    `if True:\n    ${on}\n    %jaxcluster start`,
    false
  ]);
  assert.deepEqual(place(load, '%%time\n%jaxcluster start'), [1, `%%time\n${on}\n%jaxcluster start`, false]);
  assert.deepEqual(place(load, '%%writefile a\n%jaxcluster start'), [0, `${load}\n${on}`, false]);
  assert.deepEqual(place(`${load}\nx = 1`, 'y'), [0, `${load}\n${on}\nx = 1`, false]);
  assert.deepEqual(place(null, 'x'), [1, `${load}\n${on}`, true]);
  assert.deepEqual(place(), [0, `${load}\n${on}`, true]);
  // What somebody has typed in a place of his own is his.
  assert.equal(place(`${load}\n%jaxcluster start`, on, 'x'), null);
  assert.deepEqual(withoutMode([`${load}\n%jaxcluster start`, on, '%%writefile a\n' + on]), []);
  assert.deepEqual(place(`${load}\n%jaxcluster start`, `%%writefile a\n${on}`)![0], 0);
});

test('a line that goes on over several lines is replaced as a whole, where it is indented, too', () => {
  const cells = ['%load_ext jaxcluster', 'if x:\n    %jaxcluster start -n 4 \\\n        --platform cpu\ny'];
  assert.deepEqual(placeStart(cells, '-n 2'), {
    index: 1,
    source: 'if x:\n    %jaxcluster start -n 2\ny',
    isNew: false
  });
  const line = withNumber(startIn(cells)!, 2);
  assert.equal(placeStart(cells, line).source, cells[1].replace('4', '2'));
});

test('SPMD mode breaks no code of a notebook', () => {
  const load = '%load_ext jaxcluster';
  const on = '%jaxcluster auto on';
  // The magic is known below what loads it alone.
  assert.deepEqual(placeMode(['c = jaxcluster.start(2)', load]), {
    index: 1,
    source: `${load}\n${on}`,
    isNew: false
  });
  assert.equal(placeMode([`c = jaxcluster.start(2)\n${load}`])!.source, `c = jaxcluster.start(2)\n${load}\n${on}`);
  // Nothing comes into the midst of a statement, or of a file.
  assert.equal(placeMode([load, 'c = (\n  jaxcluster.start(2)\n)'])!.index, 0);
  for (const magic of ['%%writefile a', '\n%%writefile a']) {
    const file = `${magic}\n${load}\n${on}\n%jaxcluster start`;
    assert.deepEqual(withoutMode([file]), []);
    assert.deepEqual(placeMode([file]), { index: 0, source: `${load}\n${on}`, isNew: true });
  }
  // No block becomes empty.
  assert.deepEqual(withoutMode([`${load}\nif x:\n    ${on}\n%jaxcluster start`]), []);
});
