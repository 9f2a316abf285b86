/** What went wrong last on the ranks: what the cell has said of it, the cell, and the last launches. */

import * as React from 'react';
import type { Execute } from '../actions';
import type { IReport } from '../protocol';
import type { Trans } from './labels';
import { Button } from './parts';

interface IReportView {
  report: IReport | null;
  trans: Trans;
  execute: Execute;
  /** Show the report's cell; null where that is not in a notebook of this page. */
  onShow: ((cell_id: string) => void) | null;
}

export function ReportView({ report, trans, execute, onShow }: IReportView): JSX.Element {
  if (!report) {
    return <p className="jxl-empty">{trans.__('Nothing went wrong on the ranks of this notebook.')}</p>;
  }
  const { cell, cell_id } = report;
  const where = [cell > 0 && trans.__('cell [%1]', cell), report.cluster, new Date(report.at).toLocaleString()];
  return (
    <article className="jxl-report" data-kind={report.kind}>
      <h2>
        {report.title}
        {onShow && cell_id && (
          <Button label={trans.__('Show cell [%1]', cell)} onClick={() => onShow(cell_id)} />
        )}
      </h2>
      <p className="jxl-dim">{where.filter(Boolean).join(' · ')}</p>
      <pre className="jxl-lines">{report.lines.join('\n')}</pre>
      {report.open && (
        <div className="jxl-alarm">
          <p>{trans.__('No cell can run before the ranks have new processes.')}</p>
          <Button
            label={trans.__('Restart…')}
            title={trans.__('Give the ranks new processes, with their variables or without')}
            onClick={() => execute('restart')}
          />
        </div>
      )}
      {report.source && <Source source={report.source} marked={report.marked} />}
      {report.launches && (
        <details>
          <summary>{trans.__('The last launches that all ranks agreed on')}</summary>
          <pre className="jxl-lines" tabIndex={0}>
            {report.launches}
          </pre>
        </details>
      )}
    </article>
  );
}

/** A cell's lines, with those marked at which ranks failed. */
function Source({ source, marked }: { source: string; marked: readonly number[] }): JSX.Element {
  return (
    <ol className="jxl-source">
      {source.trimEnd().split('\n').map((line, index) => (
        <li key={index} aria-current={marked.includes(index + 1) || undefined}>
          <code>{line}</code>
        </li>
      ))}
    </ol>
  );
}
