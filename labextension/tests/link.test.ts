import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { FakeContext, FakeKernel } from './fakeServices';
import { golden } from './golden';

const listeners = new Map<string, () => void>();
(globalThis as any).window = {
  addEventListener: (name: string, listener: () => void) => listeners.set(name, listener),
  removeEventListener: (name: string) => listeners.delete(name)
};

// After the fake: it takes the place of what this imports.
const { Link } = require('../src/link') as typeof import('../src/link');
type Link = InstanceType<typeof Link>;

const until = async (what: string, condition: () => unknown): Promise<void> => {
  for (const end = Date.now() + 20_000; !condition(); ) {
    assert.ok(Date.now() < end, `not within 20 s: ${what}`);
    await new Promise(resolve => setTimeout(resolve, 2));
  }
};

describe('a link', () => {
  let kernel: FakeKernel;
  let context: FakeContext;
  let link: Link;
  const open = (used: FakeKernel): void => {
    kernel = used;
    context = new FakeContext(kernel);
    link = new Link(context as any);
  };
  /** Answer the last request of this kind. */
  const answer = (op: string, result: unknown): void => {
    const { id } = kernel.requests.filter(request => request.op === op).pop()!;
    context.say({ type: 'answer', id, result });
  };
  const meet = async (): Promise<void> => {
    await until('hello', () => kernel.requests.some(({ op }) => op === 'hello'));
    answer('hello', { state: golden.state, cells: [golden.cell] });
    await until('the state', () => link.state);
  };

  beforeEach(() => listeners.clear());
  afterEach(() => link.dispose());

  test('asks a kernel without jaxcluster one question, and leaves it nothing', async () => {
    open(new FakeKernel(false));
    await until('the question', () => kernel.types('shell').includes('comm_info_request'));
    await new Promise(resolve => setTimeout(resolve, 20));
    assert.deepEqual(kernel.types('shell'), ['comm_info_request']);
    assert.equal(kernel.types('control').includes('create_subshell_request'), false);
    assert.equal(link.state, null);
    await assert.rejects(link.call('stacks', {}), /isn't loaded/);
  });

  test('greets one that has it over a subshell of its own, and learns all', async () => {
    open(new FakeKernel(true));
    let told = 0;
    link.listen(() => (told += 1));
    await meet();
    assert.equal(link.state?.current, 'main');
    assert.deepEqual([...link.cells.keys()], [golden.cell.cell_id]);
    assert.equal(told, 1);
    const opened = kernel.sent.find(({ header }) => header.msg_type === 'comm_open');
    assert.equal(opened.header.subshell_id, 'sub-1');
  });

  test('hears of a kernel that loads it later', async () => {
    open(new FakeKernel(false));
    await until('the question', () => kernel.types('shell').includes('comm_info_request'));
    await new Promise(resolve => setTimeout(resolve, 20));
    context.say(golden.state);
    assert.equal(link.state?.current, 'main');
    await until('hello', () => kernel.requests.some(({ op }) => op === 'hello'));
  });

  test('takes what other comms say for nothing', async () => {
    open(new FakeKernel(true));
    await meet();
    context.say({ ...golden.state, now: golden.state.now + 1, current: null }, 'another');
    assert.equal(link.state?.current, 'main');
  });

  test('gives each request its own answer, or its error', async () => {
    open(new FakeKernel(true));
    await meet();
    const stacks = link.call('stacks', {});
    const logs = link.call('logs', { rank: 1, lines: 5 });
    await until('both', () => kernel.requests.some(({ op }) => op === 'logs'));
    const { id } = kernel.requests.find(({ op }) => op === 'logs')!;
    context.say({ type: 'answer', id, error: 'No cluster.' });
    answer('stacks', 'here');
    assert.equal(await stacks, 'here');
    await assert.rejects(logs, { message: 'No cluster.' });
  });

  test('knows nothing of a kernel that restarts, and fails what waits for it', async () => {
    open(new FakeKernel(true));
    await meet();
    const asked = link.call('stacks', {});
    await until('it is asked', () => kernel.requests.some(({ op }) => op === 'stacks'));
    context.become('restarting');
    await assert.rejects(asked, /The kernel has ended/);
    assert.equal(link.state, null);
    assert.equal(link.cells.size, 0);
  });

  test('keeps what cells did while the connection is lost, and learns the rest anew', async () => {
    open(new FakeKernel(true));
    await meet();
    kernel.connectionStatus = 'disconnected';
    context.connectionStatusChanged.emit(context);
    assert.equal(link.state, null);
    assert.equal(link.cells.size, 1);
    kernel.connectionStatus = 'connected';
    kernel.sent.length = 0;
    context.connectionStatusChanged.emit(context);
    await meet();
  });

  test('turns to another kernel, and gives the old one its subshell back', async () => {
    open(new FakeKernel(true));
    await meet();
    const old = kernel;
    kernel = new FakeKernel(true);
    context.use(kernel);
    assert.ok(old.types('control').includes('delete_subshell_request'));
    assert.ok(old.types('shell').includes('comm_close'));
    await meet();
  });

  test('leaves nothing in the kernel when the page goes', async () => {
    open(new FakeKernel(true));
    await meet();
    listeners.get('pagehide')!();
    assert.ok(kernel.types('control').includes('delete_subshell_request'));
    assert.ok(kernel.types('shell').includes('comm_close'));
  });

  test('interrupts by a request, and where that is not heard the kernel itself', async () => {
    open(new FakeKernel(true));
    await meet();
    const heard = link.interrupt();
    await until('it is asked', () => kernel.requests.some(({ op }) => op === 'interrupt'));
    answer('interrupt', [0]);
    await heard;
    assert.equal(kernel.interrupts, 0);
    kernel.sendShellMessage = () => ({ done: new Promise(() => undefined) });
    await link.interrupt();
    assert.equal(kernel.interrupts, 1);
  });

  test('refuses to ask a busy kernel without subshells what it would do later', async () => {
    open(new FakeKernel(true, false));
    await meet();
    kernel.status = 'busy';
    await assert.rejects(link.call('stacks', {}), /runs a cell/);
    assert.equal(kernel.requests.some(({ op }) => op === 'stacks'), false);
    await link.interrupt();
    await link.interrupt('cancel');
    assert.equal(kernel.interrupts, 2);
    assert.equal(kernel.requests.some(({ op }) => op === 'cancel'), false);
  });
});
