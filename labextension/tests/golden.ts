/** The examples that the tests of the Python side read as well. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { IStartOptions } from '../src/widgets/startOptions';
import type { IAnswer, ICell, IRequest, IState } from '../src/protocol';

// Compiled, this lies in labextension/build/tests.
const FOLDER = join(__dirname, '../../../tests/golden');

export interface IGolden {
  state: IState;
  state_without_cluster: IState;
  cell: ICell;
  requests: IRequest[];
  answers: IAnswer[];
  error: IAnswer;
}

export const read = (name: string): unknown => JSON.parse(readFileSync(join(FOLDER, name), 'utf8'));

/** The panel's messages. */
export const golden = read('panel.json') as IGolden;

/** What the form has, and the line that it makes of it, which the Python side reads. */
export const startLines = read('start-lines.json') as {
  options: Partial<IStartOptions>;
  line: string;
}[];
