/** The examples that the Python side makes and reads as well: tests/golden/panel.json. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { IAnswer, ICell, IRequest, IState } from '../src/protocol';

// Compiled, this lies in labextension/build/tests.
const PATH = join(__dirname, '../../../tests/golden/panel.json');

export interface IGolden {
  state: IState;
  state_without_cluster: IState;
  cell: ICell;
  requests: IRequest[];
  answers: IAnswer[];
  error: IAnswer;
}

export const golden = JSON.parse(readFileSync(PATH, 'utf8')) as IGolden;
