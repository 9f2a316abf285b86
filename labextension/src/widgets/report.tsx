/** The hang report: who waits where, who does not, what was done, and what can be done. */

import * as React from 'react';
import { ranksText } from '../draw/shardview';
import type { IReport } from '../protocol';
import { CommandIDs } from '../tokens';
import { Button } from './parts';
import type { Trans } from './labels';

interface IReportView {
  report: IReport | null;
  trans: Trans;
  execute: (command: string) => void;
  /** Show the cell that hung; null if it is not in this notebook any more. */
  onCell: (() => void) | null;
}

export function ReportView({ report, trans, execute, onCell }: IReportView): JSX.Element {
  if (!report) {
    return (
      <article className="jxl-report">
        <p className="jxl-empty">{trans.__('No hang was found in this notebook.')}</p>
      </article>
    );
  }
  return (
    <article className="jxl-report">
      <header>
        <h2>
          {trans.__('Cell [%1] on %2', report.cell, report.cluster)}
          {onCell && <Button label={trans.__('Show the cell')} onClick={onCell} />}
        </h2>
        <p className="jxl-dim">{new Date(report.at).toLocaleString()}</p>
      </header>
      <ul className="jxl-sides">
        {report.waiting.length > 0 && (
          <li data-tone="waiting">
            <span className="jxl-glyph" aria-hidden="true">
              ◐
            </span>
            {trans._n('rank %2 waits', 'ranks %2 wait', report.waiting.length, ranksText(report.waiting))}
          </li>
        )}
        {report.culprits.length > 0 && (
          <li data-tone="bad">
            <span className="jxl-glyph" aria-hidden="true">
              ≠
            </span>
            {trans._n(
              'rank %2 does not',
              'ranks %2 do not',
              report.culprits.length,
              ranksText(report.culprits)
            )}
          </li>
        )}
      </ul>
      <pre className="jxl-lines">{report.lines.join('\n')}</pre>
      {report.recovered && (
        <p className="jxl-recovered">
          <span className="jxl-glyph" aria-hidden="true">
            ✓
          </span>
          {report.recovered}
        </p>
      )}
      {report.open && (
        <div className="jxl-alarm">
          <p>{trans.__('The ranks are still not in lockstep. What shall be done?')}</p>
          <div className="jxl-buttons" role="group" aria-label={trans.__('Recovery')}>
            <Button
              label={trans.__('Resync')}
              title={trans.__('Bring the ranks back into lockstep; variables are kept')}
              onClick={() => execute(CommandIDs.resync)}
            />
            <Button
              label={trans.__('Interrupt')}
              title={trans.__('Stop what runs on all ranks; variables are kept')}
              onClick={() => execute(CommandIDs.interrupt)}
            />
            <Button
              label={trans.__('Restart …')}
              title={trans.__('New processes, with the variables or without')}
              danger
              onClick={() => execute(CommandIDs.restart)}
            />
          </div>
        </div>
      )}
      {report.stacks && (
        <details>
          <summary>{trans.__('Stacks of all ranks as they were then')}</summary>
          <pre className="jxl-stacks" tabIndex={0} aria-label={trans.__('Stacks')} role="group">
            {report.stacks}
          </pre>
        </details>
      )}
    </article>
  );
}
