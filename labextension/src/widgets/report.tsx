/** How a cell went wrong, or which ranks have died, and what can be done. */

import * as React from 'react';
import type { IReport } from '../protocol';
import { CommandIDs } from '../commandIds';
import { Button } from './parts';
import type { Trans } from './labels';

interface IReportView {
  report: IReport | null;
  trans: Trans;
  execute: (command: string) => void;
  /** Show the report's cell; null where it is not in the notebook. */
  onShow: (() => void) | null;
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
      <div className="jxl-lines">
        {report.lines.map((line, i) => (
          <div key={i}>{line}</div>
        ))}
      </div>
      {report.open && (
        <div className="jxl-alarm">
          <p>{trans.__('No cell can run before the ranks have new processes.')}</p>
          <Button
            label={trans.__('Restart …')}
            title={trans.__('New processes, with the variables or without')}
            onClick={() => execute(CommandIDs.restart)}
          />
        </div>
      )}
    </article>
  );
}
