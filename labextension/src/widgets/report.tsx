/** What was found of a cell that went wrong: who was where, what was done, and what can be done. */

import * as React from 'react';
import { ranksText } from '../draw/shardview';
import type { IReport } from '../protocol';
import { CommandIDs } from '../commandIds';
import { Button } from './parts';
import type { Tone, Trans } from './labels';

interface IReportView {
  report: IReport | null;
  trans: Trans;
  execute: (command: string) => void;
  /** Show the report's cell; null where it is not in the notebook. */
  onShow: (() => void) | null;
}

/** Who did what, the ranks as a whole: nobody is said to have waited where somebody died. */
function sidesOf(report: IReport, trans: Trans): [glyph: string, tone: Tone, text: string][] {
  const sides: [string, Tone, string][] = [];
  const { waiting, culprits } = report;
  const ranks = (one: string, many: string, some: number[]) =>
    trans._n(one, many, some.length, ranksText(some));
  if (report.kind === 'dead') {
    if (culprits.length) {
      sides.push(['✖', 'bad', ranks('rank %2 died', 'ranks %2 died', culprits)]);
    }
    if (waiting.length) {
      sides.push(['◐', 'waiting', ranks('rank %2 waited for it', 'ranks %2 waited for it', waiting)]);
    }
    return sides;
  }
  if (report.kind === 'circle') {
    return [['◐', 'bad', ranks('rank %2 waited', 'ranks %2 waited for each other', culprits)]];
  }
  if (report.kind === 'mismatch') {
    if (waiting.length) {
      sides.push(['◐', 'waiting', ranks('rank %2 launched one program', 'ranks %2 launched one program', waiting)]);
    }
    if (culprits.length) {
      sides.push(['≠', 'bad', ranks('rank %2 another', 'ranks %2 another', culprits)]);
    }
    return sides;
  }
  if (waiting.length) {
    sides.push(['◐', 'waiting', ranks('rank %2 waited', 'ranks %2 waited', waiting)]);
  }
  if (culprits.length) {
    sides.push(['≠', 'bad', ranks('rank %2 did not', 'ranks %2 did not', culprits)]);
  }
  return sides;
}

export function ReportView(props: IReportView): JSX.Element {
  const { report, trans, execute, onShow } = props;
  if (!report) {
    return (
      <article className="jxl-report">
        <p className="jxl-empty">{trans.__('Nothing went wrong on the ranks of this notebook.')}</p>
      </article>
    );
  }
  return (
    <article className="jxl-report" data-kind={report.kind}>
      <header>
        <h2>
          {report.title}
          {onShow && <Button label={trans.__('Show cell [%1]', report.cell)} onClick={onShow} />}
        </h2>
        <p className="jxl-dim">
          {[
            report.cell > 0 && trans.__('cell [%1]', report.cell),
            report.cluster,
            new Date(report.at).toLocaleString()
          ]
            .filter(Boolean)
            .join(' · ')}
        </p>
      </header>
      <ul className="jxl-sides">
        {sidesOf(report, trans).map(([glyph, tone, text]) => (
          <li key={text} data-tone={tone}>
            <span className="jxl-glyph" aria-hidden="true">
              {glyph}
            </span>
            {text}
          </li>
        ))}
      </ul>
      <div className="jxl-lines">
        {report.lines.map((line, i) => (
          <div key={i}>{line}</div>
        ))}
      </div>
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
          <p>
            {report.kind === 'dead'
              ? trans.__('No cell can run before the ranks have new processes.')
              : trans.__('The ranks are still not in lockstep. What should be done?')}
          </p>
          <div className="jxl-buttons" role="group" aria-label={trans.__('Recovery')}>
            {report.kind !== 'dead' && (
              <Button
                label={trans.__('Resync')}
                title={trans.__('Bring the ranks back into lockstep; variables are kept')}
                onClick={() => execute(CommandIDs.resync)}
              />
            )}
            <Button
              label={trans.__('Restart …')}
              title={trans.__('New processes, with the variables or without')}
              danger={report.kind !== 'dead'}
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
